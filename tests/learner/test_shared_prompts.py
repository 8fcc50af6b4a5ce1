"""Prompts that are read once: states and gradients stay, for each architecture; fewer tokens are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from contracts.rollout import Rollout
from learner.algorithms.grpo import GRPO
from learner.batches.batching import Batch, MicroBatch, collate
from learner.batches.splitting import partition, units_of, within_budget
from learner.models.policy import CausalPolicy
from learner.models.shared_prompts import KINDS, can_share, shared_prompts, shared_states
from tests.learner.tiny import SMOOTH, VOCAB, WINDOW, make_learner, played, rollout, whole

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": VOCAB, "n_positions": WINDOW, "n_embd": 16, "n_layer": 2, "n_head": 2} | {
    "initializer_range": 0.3
}


def model_of(kind: str, **changes: Any) -> Any:
    torch.manual_seed(3)
    options = (GPT2 if kind == "gpt2" else SHAPE) | changes
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval().double()


def groups(num: int, size: int, prompt: int = 9, seed: int = 0) -> list[Rollout]:
    """Groups of `size` responses of 1 … 6 tokens to prompts of `prompt` tokens, `prompt - 1` …."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(VOCAB, (count,), generator=draw).tolist()

    def count(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=draw))

    made = []
    for group in range(num):
        question = tokens(prompt - group)
        for _ in range(size):
            one = rollout(len(made), question, tokens(count(6)), float(len(made) % 3))
            made.append(replace(one, group=group))
    return made


def found(policy: CausalPolicy, micro: MicroBatch, shared: bool) -> tuple[Tensor, Tensor]:
    """Return the states, and the gradients of a loss on them."""
    policy.zero_grad()
    cut = shared_prompts(micro) if shared else None
    assert (cut is not None) == shared
    states_NH = policy.states(micro) if cut is None else shared_states(policy.trunk, cut)
    (states_NH.sin() * torch.arange(states_NH.numel()).view_as(states_NH)).sum().backward()
    grads = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return states_NH.detach(), torch.cat(grads)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_states_and_gradients_stay(kind: str) -> None:
    lm = model_of(kind, sliding_window=None) if kind == "mistral" else model_of(kind)
    assert can_share(lm)
    policy = CausalPolicy(lm, 2**20)
    for given_rollouts in (groups(3, 4, 40), groups(1, 3, 40), several_turns()):
        micro = whole(collate(given_rollouts))
        for plain, shared in zip(found(policy, micro, False), found(policy, micro, True), strict=True):
            # norms and positions are float32 in some of them
            assert (shared - plain).norm() <= 1e-6 * plain.norm()


def test_padding_stays_within_the_models_window() -> None:
    """A long prompt with a short response stands beside a short one with a long response."""
    full = list(range(36)) + [1] * 27
    long = [rollout(i, full, (4,)) for i in range(8)]
    short = [rollout(i, full[::-1][:40], [5] * 24) for i in range(8, 10)]
    micro = whole(collate([*long, *short]))
    assert micro.tokens_SL.shape[1] == WINDOW
    policy = CausalPolicy(model_of("gpt2"), 2**20)
    for plain, shared in zip(found(policy, micro, False), found(policy, micro, True), strict=True):
        assert (shared - plain).norm() <= 1e-6 * plain.norm()


def several_turns() -> list[Rollout]:
    """Two rollouts that read the same prompt and go on differently, with observations between."""
    prompt = tuple(range(3, 33))
    first = played((prompt, (5, 6), 0.0, True), ((9, 8, 7), (4,), 1.0, False))
    return [first, played((prompt, (7,), 0.0, True), ((9,), (1, 4, 3), 1.0, False), lease_id=1)]


def test_other_attention_is_not_shared() -> None:
    """Windows that slide, and positions that are counted by place, would be wrong in silence."""
    assert not can_share(model_of("mistral", sliding_window=4))
    assert not can_share(model_of("bloom", n_head=2, n_layer=1))
    assert not can_share(model_of("gpt2", attn_implementation="eager"))
    by_length = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    assert not can_share(model_of("llama", rope_parameters=by_length))
    recomputes = model_of("llama")
    recomputes.gradient_checkpointing_enable()
    assert not can_share(recomputes)


def test_little_to_save_is_read_as_it_is() -> None:
    alone = [rollout(i, (i, i + 1, i + 2), (4, 5)) for i in range(6)]  # six prompts
    assert shared_prompts(whole(collate(alone))) is None
    short = [rollout(i, (7,), (4, 5, i)) for i in range(6)]  # its last token is read with each response
    assert shared_prompts(whole(collate(short))) is None


def test_the_example_of_the_record() -> None:
    cut = shared_prompts(whole(collate([rollout(0, (12, 14, 9), (15, 2)), rollout(1, (12, 14, 9), (16, 2))])))
    assert cut is not None
    assert (cut.prompts_UP.tolist(), cut.prompt_S.tolist(), cut.lengths_S.tolist()) == (
        [[12, 14]],
        [0, 0],
        [2, 2],
    )
    assert cut.own_SR.tolist() == [[9, 15], [9, 16]]
    assert cut.places_N.tolist() == [0, 1, 2, 3]
    assert cut.positions_SR.tolist() == [[2, 3]] * 2
    assert cut.attends_SRK[0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 300), st.integers(0, 99), st.booleans())
def test_parts_hold_each_sequence_once_within_the_budget(
    num: int, size: int, budget: int, seed: int, shares: bool
) -> None:
    batch = collate(groups(num, size, 30, seed=seed), shares_prompts=shares)
    units = units_of(batch, torch.arange(batch.num_rollouts))
    parts = partition(batch, units, budget)
    assert sorted(number for part in parts for number in part) == list(range(batch.num_sequences))
    for part in parts:
        assert len(part) * max(batch.lengths_S[part].tolist()) <= budget or len(part) == 1
    if not shares:
        assert parts == list(within_budget(batch, units, budget))
    assert num_read(batch, parts) <= num_read(batch, list(within_budget(batch, units, budget)))


def num_read(batch: Batch, parts: list[list[int]]) -> int:
    """Count what the passes of these parts really read."""
    total = 0
    for part in parts:
        cut = shared_prompts(batch.part(part)) if batch.shares_prompts else None
        total += micro_size(batch, part) if cut is None else cut.prompts_UP.numel() + cut.own_SR.numel()
    return total


def micro_size(batch: Batch, part: list[int]) -> int:
    return len(part) * int(batch.lengths_S[part].max())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_update_is_the_same_however_it_is_packed(models: dict[str, Path], name: str) -> None:
    rollouts, weights = groups(4, 4, 20), []
    for budget, shares in ((10**6, False), (10**6, True), (60, True), (1, True), (60, False)):
        learner = make_learner(models[name], GRPO(learning_rate=1e-2, optimizer=SMOOTH), token_budget=budget)
        assert learner.pair.policy.shares_prompts
        learner.pair.policy.shares_prompts = shares
        learner.update(rollouts)
        weights.append(torch.cat([p.detach().flatten() for p in learner.pair.policy.parameters()]))
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=1e-4, atol=1e-6)
    untrained = make_learner(models[name], GRPO()).pair.policy.parameters()
    assert (weights[0] - torch.cat([p.detach().flatten() for p in untrained])).abs().max() > 1e-3
