"""Encoder-decoders as policies: T5, T5 1.1, mT5 and BART equal a plain forward pass of each row."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.activations import fuse_activations
from contracts.errors import InputError, LearnerError
from contracts.rollout import FinishReason, Rollout
from learner.algorithms.base import Algorithm
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.supervised import Supervised
from learner.batches.batching import collate
from learner.models.actor_critic import ActorCritic
from learner.models.policy import Seq2SeqPolicy, check_head
from learner.models.split_turns import split_turns
from tests.learner.seq2seq import NAMES, Name, load, plain_logits, plain_logprobs, plain_states, single_turns
from tests.learner.tiny import (
    SMOOTH,
    VOCAB,
    make_learner,
    make_pair,
    parts,
    perturb,
    random_rollouts,
    rollout,
    snapshot,
    whole,
    without_times,
)

ROLLOUTS = single_turns(9)
BATCH = collate(ROLLOUTS)

everywhere = pytest.mark.parametrize("name", NAMES)


def gradients(pair: ActorCritic, loss: Tensor) -> dict[str, Tensor]:
    pair.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in pair.named_parameters() if p.grad is not None}


def assert_same_gradients(gradient_of: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Their entries reach a thousand, so it is whole tensors that are compared."""
    assert gradient_of.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float((gradient_of[name] - gradient).norm()) < 1e-4 * float(gradient.norm()) + 1e-5, name


def weighted(logprobs_N: Tensor, entropies_N: Tensor | None, values_N: Tensor | None) -> Tensor:
    """Every token pulls differently, so that no two can be confused."""
    assert entropies_N is not None and values_N is not None
    weights_N = torch.linspace(-1, 2, len(logprobs_N))
    return (weights_N * logprobs_N + weights_N.flip(0) * entropies_N + weights_N.square() * values_N).sum()


@everywhere
@pytest.mark.parametrize("logits_budget", [2**24, 5 * VOCAB])
@torch.no_grad()
def test_log_probabilities_and_entropies_in_a_padded_batch_are_those_of_each_row_alone(
    seq2seq: dict[Name, Path], name: Name, logits_budget: int
) -> None:
    lm = load(seq2seq[name])
    out = make_pair(seq2seq[name], logits_budget)(whole(BATCH), with_entropy=True)
    expected = torch.cat([plain_logprobs(lm, one) for one in ROLLOUTS])
    torch.testing.assert_close(out.logprobs_N, expected, atol=1e-5, rtol=1e-5)
    logits_NV = torch.cat([plain_logits(lm, one) for one in ROLLOUTS])
    entropies_N = torch.distributions.Categorical(logits=logits_NV).entropy()
    assert float(entropies_N.min()) < 0.9 * float(entropies_N.max())  # far from uniform: mistakes show
    torch.testing.assert_close(out.entropies_N, entropies_N, atol=1e-5, rtol=1e-5)


@everywhere
def test_gradients_are_those_of_each_row_alone(seq2seq: dict[Name, Path], name: Name) -> None:
    pair, alone = make_pair(seq2seq[name]), make_pair(seq2seq[name])
    for model in (pair, alone):
        torch.nn.init.constant_(model.critic.head.weight, 0.1)
    out = pair(whole(BATCH), with_entropy=True)
    logits_NV = torch.cat([plain_logits(alone.lm, one) for one in ROLLOUTS])
    loss = weighted(
        torch.cat([plain_logprobs(alone.lm, one) for one in ROLLOUTS]),
        torch.distributions.Categorical(logits=logits_NV).entropy(),
        alone.critic.head(torch.cat([plain_states(alone.lm, one) for one in ROLLOUTS])).squeeze(-1),
    )
    by_name = gradients(pair, weighted(out.logprobs_N, out.entropies_N, out.values_N))
    expected = gradients(alone, loss)
    assert any("encoder" in name for name in by_name) and any("decoder" in name for name in by_name)
    assert_same_gradients(by_name, expected)


@everywhere
@torch.no_grad()
def test_a_value_is_the_head_on_the_decoders_state_before_the_token(
    seq2seq: dict[Name, Path], name: Name
) -> None:
    pair = make_pair(seq2seq[name])
    assert not pair(whole(BATCH)).values_N.any()  # they begin at zero
    torch.nn.init.normal_(pair.critic.head.weight)
    states_NH = torch.cat([plain_states(load(seq2seq[name]), one) for one in ROLLOUTS])
    expected = pair.critic.head(states_NH).squeeze(-1)
    torch.testing.assert_close(pair(whole(BATCH)).values_N, expected, atol=1e-4, rtol=1e-5)


@everywhere
@torch.no_grad()
def test_what_stands_in_the_padding_is_seen_by_nobody(seq2seq: dict[Name, Path], name: Name) -> None:
    tokens = BATCH.tokens_SL.clone()
    for row, length in enumerate(BATCH.lengths_S.tolist()):
        tokens[row, length:] = 5
    rubbish = whole(replace(BATCH, tokens_SL=tokens))
    pair = make_pair(seq2seq[name])
    assert torch.equal(pair(rubbish).logprobs_N, pair(whole(BATCH)).logprobs_N)


@everywhere
@torch.no_grad()
def test_micro_batches_and_the_order_of_rows_change_nothing(seq2seq: dict[Name, Path], name: Name) -> None:
    pair = make_pair(seq2seq[name])
    expected = dict(enumerate(pair(whole(BATCH)).logprobs_N.split(BATCH.mask_BT.sum(-1).tolist())))
    for budget in (1, 40):
        for micro in parts(BATCH, budget):
            rows, counts = micro.rows_N.unique_consecutive(return_counts=True)
            logprobs_of = pair(micro).logprobs_N.split(counts.tolist())
            for row, logprobs in zip(rows.tolist(), logprobs_of, strict=True):
                torch.testing.assert_close(logprobs, expected[row], atol=1e-5, rtol=1e-5)


@everywhere
def test_the_encoder_reads_each_prompt_once(seq2seq: dict[Name, Path], name: Name) -> None:
    pair = make_pair(seq2seq[name])
    rows: list[int] = []
    pair.lm.get_encoder().register_forward_hook(lambda _m, _i, out: rows.append(len(out.last_hidden_state)))
    pair(whole(BATCH), with_entropy=True)
    assert rows == [len(ROLLOUTS)]


@everywhere
def test_logits_are_made_for_the_models_own_tokens_only(seq2seq: dict[Name, Path], name: Name) -> None:
    pair = make_pair(seq2seq[name])
    assert len(pair(whole(BATCH)).hidden_NH) == BATCH.num_tokens


def test_the_trunk_has_all_of_the_model_but_an_untied_head(seq2seq: dict[Name, Path]) -> None:
    for name in NAMES:
        policy = make_pair(seq2seq[name]).policy
        assert isinstance(policy, Seq2SeqPolicy)
        missing = {id(p) for p in policy.parameters()} - {id(p) for p in policy.trunk.parameters()}
        head = id(policy.lm.get_output_embeddings().weight)
        assert missing == ({head} if name in ("t5_gated", "mt5") else set())


@everywhere
def test_a_separate_critic_shares_no_parameter_and_gives_the_policy_no_gradient(
    seq2seq: dict[Name, Path], name: Name
) -> None:
    pair = make_pair(seq2seq[name], value_trunk="separate")
    torch.manual_seed(1)
    torch.nn.init.normal_(pair.critic.head.weight)
    actor = {parameter.data_ptr() for _, parameter in pair.actor_parameters()}
    critic = {parameter.data_ptr() for _, parameter in pair.critic_parameters()}
    assert not actor & critic
    states_NH = torch.cat([plain_states(load(seq2seq[name]), one) for one in ROLLOUTS])
    with torch.no_grad():
        values_N = pair(whole(BATCH)).values_N
        torch.testing.assert_close(values_N, pair.critic.head(states_NH).squeeze(-1), atol=1e-3, rtol=1e-4)
    reached = gradients(pair, pair(whole(BATCH)).values_N.square().sum())
    assert reached and not any(key.startswith("policy.") for key in reached)
    assert any("encoder" in key and gradient.any() for key, gradient in reached.items())
    reached = gradients(pair, pair(whole(BATCH)).logprobs_N.sum())
    assert reached and all(key.startswith("policy.") for key in reached)


@everywhere
@pytest.mark.parametrize("value_trunk", ["shared", "separate"])
def test_gradient_checkpointing_keeps_less_and_gives_the_same_gradients(
    seq2seq: dict[Name, Path], name: Name, value_trunk: str
) -> None:
    runs = []
    for checkpointing in (False, True):
        pair = make_pair(seq2seq[name], value_trunk=value_trunk, gradient_checkpointing=checkpointing)
        pair.train()
        torch.nn.init.constant_(pair.critic.head.weight, 0.1)
        kept: list[int] = []

        def pack(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = pair(whole(BATCH), with_entropy=True)
            loss = weighted(out.logprobs_N, out.entropies_N, out.values_N)
        runs.append((sum(kept), gradients(pair, loss)))
    (all_kept, plainly), (few_kept, checkpointed) = runs
    assert few_kept < all_kept / 3
    assert_same_gradients(checkpointed, plainly)


@everywhere
def test_dropout_is_off(seq2seq: dict[Name, Path], name: Name) -> None:
    pair = make_pair(seq2seq[name], value_trunk="separate").train()
    torch.nn.init.normal_(pair.critic.head.weight)
    first, second = pair(whole(BATCH)), pair(whole(BATCH))
    assert torch.equal(first.logprobs_N, second.logprobs_N)
    assert torch.equal(first.values_N, second.values_N)
    noisy = load(seq2seq[name]).train()  # the files do ask for dropout
    assert not torch.equal(plain_logprobs(noisy, ROLLOUTS[0]), plain_logprobs(noisy, ROLLOUTS[0]))


@everywhere
def test_the_head_is_the_models_own_and_another_one_is_refused(seq2seq: dict[Name, Path], name: Name) -> None:
    policy = make_pair(seq2seq[name]).policy
    check_head(policy)
    policy.lm.register_forward_hook(lambda _m, _i, out: setattr(out, "logits", 1.5 * out.logits))
    with pytest.raises(InputError, match="not supported"):
        check_head(policy)


def test_a_model_that_names_no_start_token_is_refused(seq2seq: dict[Name, Path]) -> None:
    policy = make_pair(seq2seq["t5"]).policy
    policy.lm.config.decoder_start_token_id = policy.lm.generation_config.decoder_start_token_id = None
    with pytest.raises(InputError, match="no decoder_start_token_id, which its decoder reads first"):
        policy(whole(BATCH))


def test_turns_are_cut_where_the_response_begins() -> None:
    # prompt (4, 5), answer (6,); prompt (7,), answer (0, 9): token 0 is a token like any other
    cut = split_turns(whole(collate([rollout(0, (4, 5), (6,)), rollout(1, (7,), (0, 9))])))
    assert (cut.source_BS.tolist(), cut.seen_BS.tolist()) == ([[4, 5], [7, 0]], [[1, 1], [1, 0]])
    assert (cut.response_BT.tolist(), cut.places_N.tolist()) == ([[6, 0], [0, 9]], [0, 2, 3])


def test_a_dialogue_is_refused(seq2seq: dict[Name, Path]) -> None:
    dialogue = random_rollouts(1)[0]
    assert len(dialogue.turns) == 2
    with pytest.raises(LearnerError, match=r"several turns; an encoder-decoder reads one prompt"):
        make_learner(seq2seq["bart"], PPO()).update([*single_turns(3), dialogue])


@everywhere
def test_an_exported_model_is_the_trained_one(seq2seq: dict[Name, Path], tmp_path: Path, name: Name) -> None:
    learner = make_learner(seq2seq[name], PPO())
    perturb(learner.pair.lm)
    learner.export(str(tmp_path))
    lm = load(tmp_path)
    fuse_activations(lm)
    with torch.no_grad():
        for one in ROLLOUTS[:4]:
            torch.testing.assert_close(
                plain_logprobs(lm, one), plain_logprobs(learner.pair.lm, one), atol=1e-6, rtol=1e-6
            )
    again = make_learner(tmp_path, PPO())
    torch.testing.assert_close(snapshot(again.pair.lm), snapshot(learner.pair.lm), atol=0, rtol=0)


@everywhere
def test_the_arrays_alone_turn_another_model_into_this_one(seq2seq: dict[Name, Path], name: Name) -> None:
    learner = make_learner(seq2seq[name], PPO(), value_trunk="separate")
    perturb(learner.pair.lm)
    manifest, arrays = learner.publish("float32")
    other = load(seq2seq[name])
    assert arrays.keys() == dict(other.named_parameters()).keys()
    with torch.no_grad():
        for key, parameter in other.named_parameters():
            parameter.copy_(torch.from_numpy(arrays[key]))
        probe = manifest.probe.tokens
        expected = plain_logprobs(other, rollout(0, probe, probe[1:]))
    torch.testing.assert_close(torch.tensor(manifest.probe.logprobs), expected, atol=1e-5, rtol=1e-5)


@everywhere
@pytest.mark.parametrize("algorithm", [PPO, NLPO, Supervised])
def test_splitting_padding_and_order_change_no_update(
    seq2seq: dict[Name, Path], name: Name, algorithm: Callable[..., Algorithm]
) -> None:
    made: Algorithm = algorithm(learning_rate=1e-3, minibatch_size=5, num_epochs=1, optimizer=SMOOTH)
    updates: list[tuple[dict[str, float], dict[str, Tensor]]] = []
    for budget, rollouts in ((10**6, ROLLOUTS), (30, ROLLOUTS[::-1])):
        learner = make_learner(seq2seq[name], made, token_budget=budget)
        metrics = without_times(learner.update(rollouts))
        updates.append((metrics, snapshot(learner.pair)))
    (metrics, weights), (split_metrics, split_weights) = updates
    assert split_metrics == pytest.approx(metrics, abs=1e-4, rel=1e-3)
    torch.testing.assert_close(split_weights, weights, atol=1e-5, rtol=1e-5)
    before = snapshot(make_pair(seq2seq[name]).lm)
    assert not any(torch.equal(before[key], p) for key, p in snapshot(learner.pair.lm).items())


def test_supervised_training_teaches_a_t5_its_texts(seq2seq: dict[Name, Path]) -> None:
    learner = make_learner(seq2seq["t5"], Supervised(learning_rate=1e-2, num_epochs=1))
    losses = [learner.update(ROLLOUTS)["loss/policy"] for _ in range(10)]
    assert losses[-1] < losses[0] / 3


def as_dialogue(one: Rollout) -> Rollout:
    return Rollout(one.lease_id, one.group, one.prompt, one.turns * 2, FinishReason.STOP)


def test_one_dialogue_among_many_is_noticed() -> None:
    with pytest.raises(LearnerError, match="several turns"):
        split_turns(whole(collate([*ROLLOUTS[:4], as_dialogue(ROLLOUTS[4])])))


def test_tests_have_uneven_rows() -> None:
    """Padding on both sides, or the tests above show nothing."""
    prompts: list[int] = [len(one.turns[0].observation) for one in ROLLOUTS]
    answers: list[Any] = [one.num_generated for one in ROLLOUTS]
    assert max(prompts) > 2 * min(prompts) and max(answers) > 4 * min(answers)
    assert sorted(prompts) != [p for _, p in sorted(zip(answers, prompts, strict=True))]
