"""Rollouts of several sequences: a fresh turn is read by itself, and credit does not mind."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.rollout import Rollout, Sampling
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rejection import RejectionSampling
from learner.algorithms.return_conditioned import ReturnConditioned, whole_text
from learner.algorithms.rloo import RLOO
from learner.algorithms.supervised import Supervised
from learner.algorithms.trpo import TRPO
from learner.functional.support import SamplingDistribution
from learner.learner import Learner
from learner.models.actor_critic import ActorCritic
from learner.off_policy import Correction
from learner.passes.bootstrap import bootstrap_values
from learner.passes.scoring import score
from learner.settings import LearnerSettings, ModelSettings
from learner.updates.context import UpdateContext
from learner.updates.minibatches import MinibatchUpdate
from tests.learner.contexts import make_context, random_credit
from tests.learner.precision import in_float64
from tests.learner.seq2seq import plain_logprobs as plain_seq2seq_logprobs
from tests.learner.test_every_algorithm import NOT_FROM_DATA, every, in_both_families, in_groups, smooth
from tests.learner.tiny import (
    games,
    make_learner,
    make_pair,
    perturb,
    plain_logprobs,
    played,
    rollout,
    snapshot,
    whole,
    without_times,
)

SMOOTH = OptimizerSettings(eps=1e-3)
FEW: dict[str, Any] = {"num_epochs": 2, "optimizer": SMOOTH}


def read_anew(one: Rollout) -> Rollout:
    """The same game, each turn with all that was seen before it as a context of its own."""
    turns = [replace(turn, observation=one.context(k), fresh=True) for k, turn in enumerate(one.turns)]
    return replace(one, turns=tuple(turns))


def in_one(one: Rollout) -> Rollout:
    """The same turns in one growing sequence."""
    first, *others = one.turns
    return replace(one, turns=(first, *(replace(turn, fresh=False) for turn in others)))


def trained(
    path: Path, algorithm: Algorithm, rollouts: Sequence[Rollout], **settings: Any
) -> tuple[Learner, dict[str, float]]:
    learner = make_learner(path, algorithm, **settings)
    perturb(learner.pair)
    return learner, without_times(learner.update(rollouts))


def trained_in_float64(
    path: Path, algorithm: Algorithm, rollouts: Sequence[Rollout], **settings: Any
) -> tuple[Learner, dict[str, float]]:
    learner = make_learner(path, algorithm, **settings)
    perturb(learner.pair)
    with in_float64(learner):
        return learner, without_times(learner.update(rollouts))


def same_weights(one: Learner, other: Learner, atol: float = 2e-5, rtol: float = 1e-4) -> None:
    for key, parameter in snapshot(other.pair).items():
        torch.testing.assert_close(snapshot(one.pair)[key], parameter, atol=atol, rtol=rtol)


@every
def test_a_game_in_one_sequence_or_in_many_is_the_same_game(models: dict[str, Path], name: str) -> None:
    """The model sees the same in front of every token, so nothing may change but the work."""
    growing = in_groups([in_one(one) for one in games(12)])
    apart = [read_anew(one) for one in growing]
    algorithm = smooth(name)
    expected, metrics = trained(models["llama"], algorithm, growing)
    weights, told_apart = trained(models["llama"], algorithm, apart)
    same_weights(weights, expected)
    assert told_apart == pytest.approx(metrics, abs=1e-4, rel=1e-3)


@in_both_families(NOT_FROM_DATA, quick=("ppo", "nlpo", "grpo"))
def test_neither_splitting_nor_padding_nor_order_changes_an_update(
    models: dict[str, Path], seq2seq: dict[str, Path], name: str, family: str
) -> None:
    """A rollout's sequences may end up in different micro-batches.

    T5's gradients are small here, and AdamW divides rounding by them: float64 has next to none.
    """
    rollouts = in_groups(games(12, always_fresh=family == "t5"))
    path, algorithm = (models | seq2seq)[family], smooth(name)
    train = trained_in_float64 if family == "t5" else trained
    exact = {"atol": 1e-9, "rtol": 1e-9} if family == "t5" else {}
    expected, metrics = train(path, algorithm, rollouts)
    for laid_out in (
        train(path, algorithm, rollouts, token_budget=1),
        train(path, algorithm, rollouts[::-1], token_budget=30, logits_budget=100),
    ):
        same_weights(laid_out[0], expected, **exact)
        assert laid_out[1] == pytest.approx(metrics, abs=1e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (
            PPO(value_level="action_first", turn_gamma=0.8, num_epochs=2, minibatch_size=5, optimizer=SMOOTH),
            {},
        ),
        (PPO(value_level="action_mean", normalize_values=True, num_epochs=1, optimizer=SMOOTH), {}),
        (
            TRPO(value_level="action_first", num_epochs=1, cg_max_steps=4, cg_damping=0.5, optimizer=SMOOTH),
            {},
        ),
        (RLOO(learning_rate=3e-3, num_epochs=2, optimizer=SMOOTH), {"behavior": "importance"}),
        (GRPO(learning_rate=3e-3, aggregation="constant", optimizer=SMOOTH), {"behavior": "importance"}),
    ],
    ids=["action_first", "action_mean", "trpo", "rloo", "grpo"],
)
def test_splitting_changes_no_other_way_of_counting(
    models: dict[str, Path], algorithm: Algorithm, settings: dict[str, Any]
) -> None:
    sampling = Sampling(max_tokens=20, temperature=0.9)
    rollouts = in_groups(games(12))
    expected, metrics = trained(models["gpt2"], algorithm, rollouts, sampling=sampling, **settings)
    weights, told_split = trained(
        models["gpt2"], algorithm, rollouts, sampling=sampling, token_budget=12, **settings
    )
    same_weights(weights, expected)
    assert told_split == pytest.approx(metrics, abs=1e-4, rel=1e-3)


def contexts_of(path: Path, algorithm: Algorithm, **settings: Any) -> UpdateContext:
    return make_context(make_pair(path), games(9), algorithm, **settings)


def test_a_product_over_a_response_finds_all_of_it_in_one_micro_batch(models: dict[str, Path]) -> None:
    for algorithm, correction, stays_whole in (
        (GRPO(), None, False),
        (RLOO(), None, True),
        (GRPO(), Correction("token"), True),
    ):
        context = contexts_of(models["llama"], algorithm, token_budget=10)
        context = replace(context, correction=correction)
        counts_B = context.batch.mask_BT.sum(-1)
        parts = list(context.micro_batches(torch.arange(9)))
        complete = [
            counts.tolist() == counts_B[rows].tolist()
            for rows, counts in (micro.rows_N.unique(return_counts=True) for micro in parts)
        ]
        assert all(complete) is stays_whole


def test_a_loss_is_told_of_whole_responses(models: dict[str, Path]) -> None:
    context = contexts_of(models["llama"], PPO())
    batch, credit = context.batch, random_credit(context)
    inputs = context.loss_inputs(whole(batch), credit, num_tokens=batch.num_tokens, num_rollouts=9)
    assert inputs.rows_N.unique().tolist() == list(range(9))
    assert torch.equal(inputs.lengths_N, batch.mask_BT.sum(-1)[inputs.rows_N])
    assert batch.num_sequences > 9
    for sequence in range(batch.num_sequences):
        micro = batch.part([sequence])
        alone = context.loss_inputs(micro, credit, num_tokens=batch.num_tokens, num_rollouts=9)
        assert alone.rows_N.unique().tolist() == [0]
        assert alone.lengths_N.unique().tolist() == [int(batch.mask_BT[micro.rows_N[0]].sum())]


def test_progress_is_counted_in_sequences(models: dict[str, Path]) -> None:
    seen: list[tuple[int, int]] = []
    context = contexts_of(models["gpt2"], PPO(num_epochs=3), token_budget=20)
    context = replace(context, advance=lambda done, total: seen.append((done, total)))
    MinibatchUpdate(context).run(random_credit(context))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (3 * context.batch.num_sequences, 3 * context.batch.num_sequences)
    scored: list[int] = []
    score(context.batch, context.models, SamplingDistribution(Sampling(20)), 20, scored.append)
    assert scored[-1] == context.batch.num_sequences > context.batch.num_rollouts


# Encoder-decoders


def test_an_encoder_decoder_reads_each_fresh_turn_as_a_prompt(seq2seq: dict[str, Path]) -> None:
    one = played(((5, 6, 7), (8, 9), 0.0, True), ((5,), (3, 4, 2), 1.0, True))
    pair = make_pair(seq2seq["t5"])
    context = make_context(pair, [one], PPO())
    alone = [replace(one, turns=(turn,)) for turn in one.turns]
    with torch.no_grad():
        expected_N = torch.cat([plain_seq2seq_logprobs(pair.lm, one) for one in alone])
    torch.testing.assert_close(context.scored.old_logprobs_BT[0], expected_N, atol=1e-5, rtol=1e-5)


# What would have come next


def loud(pair: ActorCritic) -> ActorCritic:
    torch.nn.init.normal_(pair.critic.head.weight, generator=torch.Generator().manual_seed(5))
    torch.nn.init.constant_(pair.critic.head.bias, 0.3)
    return pair


@torch.no_grad()
def test_a_cut_ends_in_the_critics_value_of_what_comes_next(models: dict[str, Path]) -> None:
    pair = loud(make_pair(models["gpt2"]))
    contexts = [(5, 6, 7), (), (9,)]
    rollouts = [
        replace(rollout(i, (3,), (4, 5)), truncated_context=pending) for i, pending in enumerate(contexts)
    ]

    def value(context: tuple[int, ...]) -> float:
        if not context:
            return 0.0
        return float(pair.critic.head(pair.lm.base_model(torch.tensor([context])).last_hidden_state[0, -1]))

    expected_B = torch.tensor([value(context) for context in contexts])
    assert expected_B[0] != 0
    for budget in (1, 1000):
        found_B = bootstrap_values(rollouts, pair, budget, "cpu")
        torch.testing.assert_close(found_B, expected_B, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_an_encoder_decoders_value_of_what_comes_next_is_that_of_its_prompt(seq2seq: dict[str, Path]) -> None:
    pair = loud(make_pair(seq2seq["t5"]))
    one = replace(rollout(0, (3,), (4, 5)), truncated_context=(6, 7, 8))
    context = make_context(pair, [rollout(0, (6, 7, 8), (9, 2))], PPO())
    found_B = bootstrap_values([one], pair, 100, "cpu")
    torch.testing.assert_close(found_B, context.scored.values_BT[:, 0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_it_is_in_units_of_the_rewards(models: dict[str, Path]) -> None:
    one = replace(rollout(0, (3,), (4, 5)), truncated_context=(6, 7))
    plain = loud(make_pair(models["llama"]))
    learner = make_learner(models["llama"], PPO(normalize_values=True))
    loud(learner.pair)
    norm = learner.pair.value_norm
    assert norm is not None
    norm.update(torch.tensor([10.0, 14.0]))  # mean 12, deviation 2
    raw, scaled = (bootstrap_values([one], pair, 100, "cpu") for pair in (plain, learner.pair))
    torch.testing.assert_close(scaled, 12 + 2 * raw, atol=1e-4, rtol=1e-4)


def test_a_cut_changes_what_is_learned_unless_it_counts_as_an_end(models: dict[str, Path]) -> None:
    cut = games(9)
    ended = [replace(one, truncated_context=()) for one in cut]
    assert cut != ended

    def updated(rollouts: Sequence[Rollout], **options: Any) -> tuple[Learner, dict[str, float]]:
        ppo = PPO(num_epochs=1, advantage_whitening="none", optimizer=SMOOTH, **options)
        return trained(models["llama"], ppo, rollouts)

    (as_end, metrics), (end, told_end) = updated(cut, bootstrap_truncated=False), updated(ended)
    same_weights(as_end, end)
    assert metrics == told_end
    assert updated(cut)[1]["loss/value"] != pytest.approx(metrics["loss/value"], rel=1e-3)


# Imitation


def test_a_fresh_turn_is_a_pair_by_itself() -> None:
    # γ = ½: returns-to-go 1 + ½ · 4 = 3 and 4; the second turn forgot the first
    game = played(((5, 6), (7,), 1.0, True), ((8,), (9, 2), 4.0, True), ((3,), (4,), 0.0, False))
    game = replace(game, truncated_context=(1, 1))
    kept, _ = RejectionSampling(unit="turn", top_share=1.0, gamma=0.5).select([game], [])
    assert [one.tokens for one in kept] == [(8, 9, 2), (5, 6, 7), (8, 9, 2, 3, 4)]
    assert [one.loss_mask for one in kept] == [(0, 1, 1), (0, 0, 1), (0, 0, 0, 0, 1)]
    assert [one.total_reward for one in kept] == [4.0, 3.0, 0.0]
    assert all(one.turns[0].fresh and not one.truncated_context for one in kept)


def test_games_are_ranked_by_all_of_their_turns(models: dict[str, Path]) -> None:
    steady = played(((5,), (6,), 1.0, True), ((7,), (8,), 1.0, True), lease_id=0)
    lucky = played(((5,), (6,), 0.0, True), ((7,), (8,), 1.5, True), lease_id=1)
    rejection = RejectionSampling(top_share=None, top_n=1, elite_size=2)
    learner = make_learner(models["gpt2"], rejection)
    learner.update([lucky, steady])
    assert [one.lease_id for one in learner.elite] == [0]


def test_an_experts_games_are_imitated_turn_by_turn(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], Supervised(num_epochs=1, minibatch_size=None))
    expert = games(8)
    with torch.no_grad():
        alone = [replace(one, turns=(turn,)) for one in map(read_anew, expert) for turn in one.turns]
        expected = -torch.cat([plain_logprobs(learner.pair.lm, one) for one in alone]).mean()
    assert learner.update(expert)["loss/policy"] == pytest.approx(float(expected), abs=1e-5)


def test_the_whole_text_of_a_game() -> None:
    game = played(((5, 6), (7,), 1.0, True), ((8,), (9,), 0.5, False), ((3, 4), (2,), 2.0, True))
    text = whole_text(replace(game, truncated_context=(1,)))
    assert text.tokens == (5, 6, 7, 8, 9, 3, 4, 2)
    assert text.loss_mask == (0, 1, 1, 1, 1, 0, 1, 1)
    assert [segment[0].tokens for segment in text.segments] == [(6, 7, 8, 9), (4, 2)]
    assert (text.total_reward, text.truncated_context) == (3.5, ())
    assert whole_text(text).tokens == text.tokens


@pytest.mark.parametrize("loss_on", ["response", "text"])
def test_return_conditioned_training_is_the_likelihood_behind_the_return(
    models: dict[str, Path], loss_on: Any
) -> None:
    """Sequences of rollouts whose probabilities at play mean nothing."""
    algorithm = ReturnConditioned(num_epochs=1, minibatch_size=None, loss_on=loss_on)
    traits = algorithm.traits
    assert not traits.online and traits.learns_from == "rollouts" and traits.target_return
    learner = make_learner(models["llama"], algorithm)
    rollouts = games(8)
    of = [whole_text(one) for one in rollouts] if loss_on == "text" else rollouts
    with torch.no_grad():
        alone = [replace(one, turns=(turn,)) for one in map(read_anew, of) for turn in one.turns]
        expected = -torch.cat([plain_logprobs(learner.pair.lm, one) for one in alone]).mean()
    assert learner.update(rollouts)["loss/policy"] == pytest.approx(float(expected), abs=1e-5)


def test_a_model_learns_to_do_as_well_as_it_is_told(models: dict[str, Path]) -> None:
    """After return w3 the answers are w5, after w4 w6; asked for either, it gives it."""
    learner = make_learner(models["llama"], ReturnConditioned(learning_rate=1e-2))
    good = [rollout(i, (3, 9), (5, 2), 1.0) for i in range(8)]
    bad = [rollout(8 + i, (4, 9), (6, 2), 0.0) for i in range(8)]
    for _ in range(20):
        learner.update([*good, *bad])
    with torch.no_grad():
        for wanted, answer in ((3, 5), (4, 6)):
            assert int(learner.pair.lm(torch.tensor([[wanted, 9]])).logits[0, -1].argmax()) == answer


# Lengths


def test_a_response_may_have_as_many_tokens_as_all_of_its_turns(models: dict[str, Path]) -> None:
    # centred: three tokens of ½ and one of -½; over 5 tokens · 2 rollouts, or 2 · 5 · 2
    won = played(((3,), (4, 5), 1.0, True), ((6,), (7,), 0.0, True))
    rollouts = [won, replace(rollout(1, (3,), (4,), 0.0), group=0)]
    algorithm = GRPO(aggregation="constant", scale_by_deviation=False, reward_scale=1.0)
    for turns, expected in (({}, -1 / 10), ({"max_turns": 2}, -1 / 20)):
        learner = Learner(
            ModelSettings(path=str(models["gpt2"])),
            algorithm,
            LearnerSettings(device="cpu"),
            seed=0,
            iterations=1,
            sampling=Sampling(max_tokens=5),
            **turns,
        )
        assert learner.update(rollouts)["loss/policy"] == pytest.approx(expected)
