"""The learner's updates: irrelevant choices change nothing, and stop conditions stop."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import LearnerError
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.algorithms.ppo import PPO
from learner.algorithms.supervised import Supervised
from learner.batches.batching import Batch
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from learner.passes.scoring import ScoredBatch
from tests.learner.tiny import (
    SMOOTH,
    make_learner,
    plain_logprobs,
    random_rollouts,
    rollout,
    snapshot,
    without_times,
)

PUBLISHED = PPO(minibatch_size=4, num_epochs=2)


def assert_same_weights(one: Learner, other: Learner, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(snapshot(one.pair), snapshot(other.pair), atol=tolerance, rtol=tolerance)


def shift_old_logprobs(learner: Learner, by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the policy was another one when the batch was scored."""
    score = learner._score_batch

    def shifted(batch: Batch, rollouts: Sequence[Rollout]) -> ScoredBatch:
        scored = score(batch, rollouts)
        return dataclasses.replace(scored, old_logprobs_BT=scored.old_logprobs_BT + by * batch.mask_BT)

    monkeypatch.setattr(learner, "_score_batch", shifted)


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(minibatch_size=5, num_epochs=2, entropy_coef=0.01, optimizer=SMOOTH),
        PPO(minibatch_size=None, num_epochs=2, value_clip_range=0.1, optimizer=SMOOTH),
        Supervised(learning_rate=1e-3, minibatch_size=5, optimizer=SMOOTH),
    ],
)
@pytest.mark.parametrize("value_trunk", ["shared", "separate"])
def test_splitting_a_minibatch_into_micro_batches_changes_nothing(
    models: dict[str, Path], algorithm: Algorithm, value_trunk: Any
) -> None:
    rollouts = random_rollouts(11)  # 2 … 30 tokens long, so the shares are very uneven
    learners, metrics = [], []
    for token_budget in (1, 50, 10**6):
        learner = make_learner(models["llama"], algorithm, value_trunk=value_trunk, token_budget=token_budget)
        metrics.append(without_times(learner.update(rollouts)))
        learners.append(learner)
    for learner, measured in zip(learners[:-1], metrics[:-1], strict=True):
        assert_same_weights(learner, learners[-1], tolerance=1e-5)
        assert measured == pytest.approx(metrics[-1], abs=1e-4, rel=1e-3)
    assert_moved(learners[-1])


def assert_moved(learner: Learner) -> None:
    fresh = make_learner(Path(learner.model_settings.path), learner.algorithm)
    before, after = snapshot(fresh.pair.lm), snapshot(learner.pair.lm)
    assert all(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["gpt2", "llama_tied"])
def test_on_the_first_pass_the_ratio_is_one(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models[name], PPO(minibatch_size=None, num_epochs=1), token_budget=30)
    metrics = learner.update(random_rollouts(10))
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["clip_fraction"] == 0
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
    # whitened over the minibatch, advantages have mean 0, and so has the surrogate at ratio 1
    assert metrics["loss/policy"] == pytest.approx(0, abs=1e-5)
    assert (metrics["update/steps"], metrics["update/epochs"]) == (1, 1)


@pytest.mark.parametrize("algorithm", [PUBLISHED, Supervised(minibatch_size=4)])
def test_the_order_in_which_rollouts_arrive_does_not_matter(
    models: dict[str, Path], algorithm: Algorithm
) -> None:
    rollouts = random_rollouts(10)
    in_order, shuffled = make_learner(models["gpt2"], algorithm), make_learner(models["gpt2"], algorithm)
    for seed in range(2):
        arrived = random.Random(seed).sample(rollouts, len(rollouts))
        assert arrived != rollouts
        expected = in_order.update(rollouts)
        assert without_times(shuffled.update(arrived)) == without_times(expected)
    assert_same_weights(in_order, shuffled)


def test_the_same_seed_gives_the_same_weights_and_another_one_other_minibatches(
    models: dict[str, Path],
) -> None:
    first, again, other = (make_learner(models["llama"], PUBLISHED, seed=seed) for seed in (5, 5, 6))
    for learner in (first, again, other):
        learner.update(random_rollouts(10))
    assert_same_weights(first, again)
    with pytest.raises(AssertionError):
        assert_same_weights(first, other)


def test_epochs_and_iterations_each_have_an_order_of_their_own(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], PUBLISHED)
    orders = [learner._shuffled(12, epoch).tolist() for epoch in range(3)]
    learner.version = 1
    orders += [learner._shuffled(12, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len(set(map(tuple, orders))) == 6


def test_a_drift_beyond_the_limit_in_the_first_minibatch_leaves_the_weights_alone(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(models["gpt2"], PPO(target_kl=0.1))
    shift_old_logprobs(learner, 1.0, monkeypatch)  # r - 1 - ln r with r = 1/e: .37 > .15
    before = snapshot(learner.pair)
    metrics = learner.update(random_rollouts(10))
    assert all(torch.equal(before[name], p) for name, p in snapshot(learner.pair).items())
    assert (metrics["update/stopped_early"], metrics["update/steps"], metrics["tokens/trained"]) == (1, 0, 0)
    assert learner.version == 1
    assert not learner.optimizer.state


def test_a_drift_within_the_limit_goes_on(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(models["gpt2"], PPO(target_kl=0.3, learning_rate=1e-6, num_epochs=2))
    shift_old_logprobs(learner, 1.0, monkeypatch)  # .37 < 1.5 · .3
    metrics = learner.update(random_rollouts(10))
    assert (metrics["update/stopped_early"], metrics["update/steps"]) == (0, 2)
    assert metrics["approx_kl"] == pytest.approx(0.3679, abs=1e-3)


def test_an_update_that_drifts_stops_between_two_minibatches(models: dict[str, Path]) -> None:
    algorithm = PPO(learning_rate=0.03, minibatch_size=4, num_epochs=50, target_kl=0.02)
    learner = make_learner(models["llama"], algorithm)
    metrics = learner.update(random_rollouts(8))
    assert metrics["update/stopped_early"] == 1
    assert 1 <= metrics["update/steps"] < 100
    assert metrics["update/epochs"] == metrics["update/steps"] / 2
    assert all(p.grad is None for p in learner.pair.parameters())


@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_rewards_that_are_all_equal_leave_a_finite_model(
    models: dict[str, Path], normalize_rewards: bool
) -> None:
    learner = make_learner(models["llama"], PPO(normalize_rewards=normalize_rewards, minibatch_size=3))
    metrics = learner.update([rollout(i, (3, 4), (5 + i,), 0.7) for i in range(7)])  # the last is alone
    assert all(torch.isfinite(p).all() for p in learner.pair.parameters())
    assert metrics["loss/policy"] == pytest.approx(0, abs=1e-6)


def test_single_tokens_with_equal_rewards_do_not_move_the_policy(models: dict[str, Path]) -> None:
    algorithm = PPO(
        value_coef=0.0,
        minibatch_size=None,
        optimizer=OptimizerSettings(weight_decay=0.0),
        kl=KLSettings(coefficient=0.0),
    )
    learner = make_learner(models["gpt2"], algorithm)
    before = snapshot(learner.pair.lm)
    learner.update([rollout(i, (3, 4), (5 + i % 9,), 0.1) for i in range(100)])
    assert all(torch.equal(before[name], p) for name, p in snapshot(learner.pair.lm).items())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_where_nothing_is_rewarded_not_a_bit_of_the_policy_moves(models: dict[str, Path], name: str) -> None:
    """The KL of equal weights is 0 itself: whitening would make full steps of rounding errors."""
    algorithm = PPO(optimizer=OptimizerSettings(weight_decay=0.0))
    learner = make_learner(models[name], algorithm)
    before = snapshot(learner.pair.lm)
    metrics = learner.update([rollout(i, (3, 4), (5 + i % 9, 7, 6 + i % 4), 0.0) for i in range(32)])
    assert metrics["kl/mean"] == 0.0
    assert all(torch.equal(before[name], p) for name, p in snapshot(learner.pair.lm).items())


def test_bfloat16_autocast_trains_float32_weights(models: dict[str, Path]) -> None:
    exact = make_learner(models["llama"], PPO(num_epochs=2, minibatch_size=None))
    half = make_learner(
        models["llama"], PPO(num_epochs=2, minibatch_size=None), autocast="bfloat16", logits_budget=300
    )
    expected, metrics = exact.update(random_rollouts(8)), half.update(random_rollouts(8))
    assert metrics["entropy"] == pytest.approx(expected["entropy"], abs=0.05)
    assert metrics["entropy"] != expected["entropy"]
    assert {p.dtype for p in half.pair.parameters()} == {torch.float32}
    assert_moved(half)


def test_gradient_checkpointing_trains_to_the_same_weights(models: dict[str, Path]) -> None:
    algorithm = PPO(num_epochs=2, optimizer=SMOOTH)
    plain = make_learner(models["gpt2"], algorithm, value_trunk="separate")
    checkpointed = make_learner(
        models["gpt2"], algorithm, value_trunk="separate", gradient_checkpointing=True, logits_budget=300
    )
    for learner in (plain, checkpointed):
        learner.update(random_rollouts(8))
    assert_same_weights(plain, checkpointed, tolerance=1e-5)


def test_supervised_training_lowers_the_likelihood_loss_and_needs_no_reference(
    models: dict[str, Path],
) -> None:
    learner = make_learner(models["llama"], Supervised(learning_rate=1e-2, num_epochs=2))
    assert learner.reference is None
    rollouts = random_rollouts(6)
    with torch.no_grad():
        nll = -float(torch.cat([plain_logprobs(learner.pair.lm, one) for one in rollouts]).mean())
    critic = snapshot(learner.pair.critic.head)
    losses = [learner.update(rollouts)["loss/policy"] for _ in range(8)]
    assert nll * 0.8 < losses[0] < nll  # the mean of two epochs, the first before any step
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 3
    assert all(torch.equal(critic[name], p) for name, p in snapshot(learner.pair.critic.head).items())


def test_a_loss_that_is_no_number_stops_before_it_reaches_the_weights(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], PPO())
    before = snapshot(learner.pair)
    with pytest.raises(LearnerError, match="rewards: got nan for token 0 of rollout 3"):
        learner.update([*random_rollouts(3), rollout(9, (1,), (2,), float("nan"))])
    assert all(torch.equal(before[name], p) for name, p in snapshot(learner.pair).items())


def test_an_empty_answer_is_refused(models: dict[str, Path]) -> None:
    bad: list[Rollout] = [rollout(0, (1, 2), ())]
    with pytest.raises(LearnerError, match="0 generated"):
        make_learner(models["gpt2"], PPO()).update(bad)
