"""Rows without padding: plans, log-probabilities, gradients, the kernel's check, updates, compiled blocks."""

import copy
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.batches.batching import MicroBatch, collate
from learner.models import attention
from learner.models.attention import attend_in_float32, packs_on
from learner.models.compiled_blocks import CompiledBlocks
from learner.models.packing import PACKED_KINDS, can_pack, packed_row
from learner.models.policy import CausalPolicy
from tests.learner.test_planned_passes import AsIfOnAGPU
from tests.learner.test_shared_prompts import model_of, several_turns
from tests.learner.tiny import (
    SMOOTH,
    games,
    make_learner,
    played,
    random_rollouts,
    snapshot,
    whole,
    without_times,
)
from tests.learner.varlen_on_cpu import packs_on_cpus

__all__ = ["packs_on_cpus"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _known_attention() -> None:
    attend_in_float32()


def numbers(policy: CausalPolicy, micro: MicroBatch, packs: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities and the gradients of a loss on them."""
    policy.packs_rows = packs
    assert not packs or can_pack(policy.lm, micro.tokens_SL.device)
    policy.zero_grad()
    logprobs_N = policy(micro)
    (logprobs_N * torch.linspace(-1, 2, len(logprobs_N), device=logprobs_N.device)).sum().backward()
    gradients = [parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None]
    return logprobs_N.detach().double(), torch.cat(gradients).double()


def error(got: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> list[float]:
    return [float((a - b).norm() / b.norm()) for a, b in zip(got, right, strict=True)]


def test_the_example_of_the_record() -> None:
    row = packed_row(whole(collate([played(((12, 14), (15, 2), 0.5, True), ((12, 9), (2,), 1.0, True))])))
    assert row.tokens_1P.tolist() == [[12, 14, 15, 12, 9]]
    assert row.positions_1P.tolist() == [[0, 1, 2, 0, 1]]
    assert (row.starts_E.tolist(), row.starts_E.dtype) == ([0, 3, 5], torch.int32)
    assert (row.places_N.tolist(), row.longest) == ([1, 2, 4], 3)


@given(st.integers(1, 12), st.integers(0, 99))
def test_a_row_has_each_sequence_up_to_the_models_last_token(num: int, seed: int) -> None:
    micro = whole(collate(games(num, seed)))
    row = packed_row(micro)
    flat, starts = row.tokens_1P[0], row.starts_E.tolist()
    assert flat[row.places_N].tolist() == micro.tokens_SL.flatten()[micro.places_N].tolist()
    for sequence, (begin, end) in enumerate(itertools.pairwise(starts)):
        assert flat[begin:end].tolist() == micro.tokens_SL[sequence, : end - begin].tolist()
        assert row.positions_1P[0, begin:end].tolist() == list(range(end - begin))
        assert micro.loss_mask_SL[sequence].nonzero().max() == end - begin
    assert row.longest == max(b - a for a, b in itertools.pairwise(starts))
    assert starts[-1] == len(flat)


@pytest.mark.usefixtures("packs_on_cpus")
@pytest.mark.parametrize("kind", sorted(PACKED_KINDS))
def test_logprobs_and_gradients_stay(kind: str) -> None:
    lm = model_of(kind, sliding_window=None) if kind == "mistral" else model_of(kind)
    policy = CausalPolicy(lm, 2**20)
    for rollouts in (random_rollouts(7), games(5), several_turns()):
        micro = whole(collate(rollouts))
        assert max(error(numbers(policy, micro, True), numbers(policy, micro, False))) <= 1e-6


@pytest.mark.usefixtures("packs_on_cpus")
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_packed_rows_are_as_near_to_float64_as_padded_ones(kind: str, rounds: bool) -> None:
    options = {} if kind == "gpt2" else {"num_key_value_heads": 1}
    right = model_of(kind, **options)
    policy = CausalPolicy(copy.deepcopy(right).float(), 2**20)
    micro = whole(collate(games(9)))
    exact = numbers(CausalPolicy(right, 2**20), micro, False)
    errors = []
    for packs in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=rounds):
            errors.append(error(numbers(policy, micro, packs), exact))
    # On a CPU, padded rows attend in float32 even under autocast
    for packed, padded in zip(*errors, strict=True):
        assert packed <= (1.5 if rounds else 1.2) * padded + 1e-7


def broken(*inputs: Any, **options: Any) -> Tensor:
    output: Tensor = inputs[0] + inputs[2].mean(1, keepdim=True)
    return output


@pytest.mark.usefixtures("packs_on_cpus")
def test_the_check_refuses_a_kernel_with_other_numbers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in (torch.bfloat16, torch.float16):
        assert packs_on(CPU, kind, (4, 2), 16)
    assert not packs_on(CPU, torch.bfloat16, (4, 2), 12) and not packs_on(CPU, torch.bfloat16, (4, 2), 264)
    policy, micro = CausalPolicy(model_of("llama"), 2**20), whole(collate(games(5)))
    padded = numbers(policy, micro, False)
    attention._is_right.cache_clear()
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", broken)
    with caplog.at_level(logging.WARNING):
        assert not any(can_pack(policy.lm, CPU) for _ in range(2))
        policy.packs_rows = True
        assert torch.equal(policy(micro).detach().double(), padded[0])
    (record,) = caplog.records
    assert "so sequences are padded" in record.message and "outputs differ" in record.message


def test_without_a_kernel_rows_are_padded() -> None:
    assert not packs_on(CPU, torch.bfloat16, (4, 2), 16)
    assert not packs_on(torch.device("cuda"), torch.float32, (4, 2), 16)


@pytest.mark.usefixtures("packs_on_cpus")
@pytest.mark.parametrize(
    "algorithm",
    [GRPO(minibatch_size=5, num_epochs=2, optimizer=SMOOTH), PPO(minibatch_size=5, optimizer=SMOOTH)],
)
def test_updates_do_not_change_and_do_not_wait(models: dict[str, Path], algorithm: Any) -> None:
    packed, padded = (make_learner(models["llama"], algorithm, token_budget=60) for _ in range(2))
    for policy in filter(None, (padded.pair.policy, padded.reference)):
        policy.packs_rows = False
    assert packed.pair.policy.packs_rows and can_pack(packed.pair.lm, CPU)  # the check itself waits
    rollouts = games(9)
    with AsIfOnAGPU():
        got = without_times(packed.update(rollouts))
    expected = without_times(padded.update(rollouts))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    weights = snapshot(padded.pair)
    for name, parameter in snapshot(packed.pair).items():
        assert torch.allclose(parameter, weights[name], atol=2e-5), name


@pytest.mark.long
@pytest.mark.usefixtures("packs_on_cpus")
def test_compiled_blocks_read_packed_rows_with_the_same_bits() -> None:
    policy = CausalPolicy(model_of("llama").float(), 2**20)
    plain, compiled = CausalPolicy(copy.deepcopy(policy.lm), 2**20), CompiledBlocks("aot_eager")
    compiled.add(policy.lm)
    for num in (4, 7, 5, 9):
        micro = whole(collate(games(num, seed=num)))
        for one, other in zip(numbers(policy, micro, True), numbers(plain, micro, True), strict=True):
            assert torch.equal(one, other)
    assert compiled.failure is None and compiled.num_graphs == 1  # only with gradients
    torch._dynamo.reset()
