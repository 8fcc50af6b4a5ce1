"""Updates of one step: their own forward pass gives old log-probabilities, and nothing else changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import LearnerError
from contracts.rollout import Rollout, Sampling
from learner.algorithms.base import Algorithm, Credit, CreditInputs
from learner.algorithms.cispo import CISPO
from learner.algorithms.dapo import DAPO
from learner.algorithms.distillation import Distillation
from learner.algorithms.dppo import DPPO
from learner.algorithms.dr_grpo import DrGRPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.gspo import GSPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rejection import RejectionSampling
from learner.algorithms.rloo import RLOO
from learner.algorithms.sapo import SAPO
from learner.learner import Learner
from learner.models.policy import Policy
from learner.optimization.kl_control import KLSettings
from learner.passes.known_passes import compared_rollouts, loads_reference, said_of_passes, why_not_early
from learner.passes.scoring import ScoredBatch
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts, snapshot, without_times

ONE_STEP: dict[str, Algorithm] = {
    "grpo": GRPO(optimizer=SMOOTH, learning_rate=1e-3),
    "grpo k1": GRPO(
        optimizer=SMOOTH,
        learning_rate=1e-3,
        kl=KLSettings(placement="loss", estimator="k1", coefficient=0.1),
    ),
    "dr_grpo": DrGRPO(optimizer=SMOOTH, learning_rate=1e-3),
    "gspo": GSPO(optimizer=SMOOTH, learning_rate=1e-3),
    "dapo": DAPO(optimizer=SMOOTH, learning_rate=1e-3),
    "cispo": CISPO(optimizer=SMOOTH, learning_rate=1e-3),
    "sapo": SAPO(optimizer=SMOOTH, learning_rate=1e-3),
    "dppo": DPPO(optimizer=SMOOTH, learning_rate=1e-3),
    "a bonus": GRPO(optimizer=SMOOTH, learning_rate=1e-3, entropy_coef=0.1),
}


def groups_of_four() -> list[Rollout]:
    return [replace(one, group=number // 4) for number, one in enumerate(random_rollouts(12))]


def passes(policy: Policy) -> list[int]:
    """Note the number of sequences of each pass of a policy's trunk."""
    noted: list[int] = []
    policy.trunk.register_forward_hook(
        lambda *call: noted.append(len(call[2]["input_ids"])), with_kwargs=True
    )
    return noted


@pytest.mark.parametrize("name", ONE_STEP)
@pytest.mark.parametrize("budget", [60, 10**6])
def test_weights_and_metrics_are_those_of_an_own_pass(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, budget: int
) -> None:
    updates = []
    for by_update in (True, False):
        learner = make_learner(models["llama"], ONE_STEP[name], token_budget=budget)
        if not by_update:
            monkeypatch.setattr("learner.passes.scorer.scores_come_with_the_update", lambda *_, **__: False)
        metrics = [without_times(learner.update(groups_of_four())) for _ in range(2)]
        updates.append((snapshot(learner.pair), metrics))
    (weights, metrics), (expected_weights, expected) = updates
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)
    assert [row.keys() for row in metrics] == [row.keys() for row in expected]
    for got, known in zip(metrics, expected, strict=True):
        assert got == pytest.approx(known, abs=1e-4, rel=1e-3)


def scores_of(learner: Learner) -> list[ScoredBatch]:
    """Note what each update scores."""
    noted: list[ScoredBatch] = []
    score = learner._score_batch
    learner._score_batch = lambda *arguments: (noted.append(score(*arguments)), noted[-1])[1]  # type: ignore[method-assign]
    return noted


@pytest.mark.parametrize("num_epochs", [1, 2])  # with 1 the update's own pass gives the policy's scores
def test_a_kl_that_only_shows_is_measured_on_some_responses(models: dict[str, Path], num_epochs: int) -> None:
    by_interval = {}
    for every in (0, 1, 5):
        kl = KLSettings(placement="loss", coefficient=0.0, measure_every=every)
        algorithm = GRPO(optimizer=SMOOTH, learning_rate=1e-2, kl=kl, num_epochs=num_epochs)
        learner = make_learner(models["llama"], algorithm)
        assert (learner.reference is None) == (every == 0)
        learner.update(groups_of_four())
        reads = passes(learner.reference) if learner.reference else []
        scored = scores_of(learner)
        metrics = without_times(learner.update(groups_of_four()))
        by_interval[every] = snapshot(learner.pair), metrics, scored[0], sum(reads)
    for every in (0, 5):
        for name, weight in by_interval[every][0].items():
            assert torch.equal(weight, by_interval[1][0][name])
    assert "kl/mean" not in by_interval[0][1]
    whole = by_interval[1][2]
    ratios_BT = whole.old_logprobs_BT - whole.ref_logprobs_BT
    tokens = sum(len(turn.tokens) for row in (0, 5, 10) for turn in groups_of_four()[row].turns)
    expected = float(ratios_BT[[0, 5, 10]].sum()) / tokens
    assert by_interval[5][1]["kl/mean"] == pytest.approx(expected, rel=1e-4) and abs(expected) > 1e-3
    assert by_interval[1][3] == 12 and by_interval[5][3] == 3


def test_where_the_kl_acts_it_is_measured_on_all() -> None:
    acting = GRPO(kl=KLSettings(placement="loss", coefficient=0.1, measure_every=0))
    for algorithm in (GRPO(), PPO(), Distillation(), acting):
        assert len(compared_rollouts(algorithm, 12)) == 12 and loads_reference(algorithm)


def test_what_is_left_out_is_said() -> None:
    setup: dict[str, bool] = {"restricts": False, "has_data": False, "drops_out": False}
    assert said_of_passes(PPO(), num_rollouts=8, **setup) == []
    assert said_of_passes(DrGRPO(), num_rollouts=8, **setup) == [
        "old log-probabilities come from the update's pass",
        "the reference scores one of 8 responses",
    ]
    never = DrGRPO(filter_truncated=True, kl=KLSettings(placement="loss", coefficient=0.0, measure_every=0))
    assert said_of_passes(never, num_rollouts=8, **setup) == ["there is no reference, and no kl/mean"]


def test_the_policys_trunk_runs_once_a_batch_and_never_to_score(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], ONE_STEP["grpo"])
    noted = passes(learner.pair.policy)
    learner.update(groups_of_four())
    assert noted == [12]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (GRPO(filter_truncated=True), {}),
        (GRPO(), {"sampling": Sampling(max_tokens=32, top_k=5)}),
        (RLOO(), {}),  # its KL is in the reward
        (PPO(num_epochs=1, minibatch_size=None), {}),  # its critic's values come before the update
    ],
)
def test_where_scores_are_needed_before_the_policy_has_its_pass(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm, options: dict[str, Any]
) -> None:
    learner = make_learner(models["llama"], algorithm, **options)
    scored: list[bool] = []
    score = learner._score_batch
    monkeypatch.setattr(
        learner,
        "_score_batch",
        lambda *arguments: (batch := score(*arguments), scored.append(batch.by_update))[0],
    )
    learner.update(groups_of_four())
    assert scored == [False]


def test_what_learns_from_turns_is_not_scored_by_rollouts() -> None:
    turns = RejectionSampling(top_share=0.5, unit="turn")
    assert "turns" in str(why_not_early(turns, restricts=False, with_the_update=False))
    assert why_not_early(RejectionSampling(top_share=0.5), restricts=False, with_the_update=False) is None


# The first of several minibatches


SEVERAL: dict[str, Algorithm] = {
    "minibatches": GRPO(optimizer=SMOOTH, learning_rate=1e-3, minibatch_size=4),
    "epochs": GRPO(optimizer=SMOOTH, learning_rate=1e-3, num_epochs=2),
    "both": DrGRPO(optimizer=SMOOTH, learning_rate=1e-3, num_epochs=2, minibatch_size=5),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_the_first_minibatch_gives_its_scores_and_nothing_changes(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    results, scores = [], []
    for by_update in (True, False):
        learner = make_learner(models["llama"], SEVERAL[name], token_budget=60)
        if not by_update:
            full = "learner.passes.scorer.first_scores_come_with_the_update"
            monkeypatch.setattr(full, lambda *_, **__: False)
        noted = scores_of(learner)
        metrics = [without_times(learner.update(groups_of_four())) for _ in range(2)]
        assert [batch.by_update for batch in noted] == [by_update] * 2
        results.append((snapshot(learner.pair), metrics))
        scores.append(noted[-1])
    (weights, metrics), (expected_weights, expected) = results
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)
    for got, known in zip(metrics, expected, strict=True):
        assert got == pytest.approx(known, abs=1e-4, rel=1e-3)
    for field in ("old_logprobs_BT", "entropies_BT", "ref_logprobs_BT"):
        got_BT, known_BT = (getattr(scores_of_update, field) for scores_of_update in scores)
        torch.testing.assert_close(got_BT, known_BT, atol=1e-5, rtol=1e-5)


def test_only_later_minibatches_have_a_pass_of_their_own(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], SEVERAL["minibatches"], token_budget=10**6)
    noted = passes(learner.pair.policy)
    learner.update(groups_of_four())
    assert noted == [8, 4, 4, 4]  # eight are scored, then three minibatches


def test_what_was_scored_early_has_no_other_pass(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], SEVERAL["minibatches"], token_budget=10**6)
    learner.score_early(groups_of_four()[:8], 12)
    noted = passes(learner.pair.policy)
    learner.update(groups_of_four())
    assert noted == [4, 4, 4, 4]  # what was missing, then three minibatches


def test_the_plan_says_it_of_the_first_minibatch() -> None:
    setup: dict[str, bool] = {"restricts": False, "has_data": False, "drops_out": False}
    (phrase,) = said_of_passes(SEVERAL["minibatches"], num_rollouts=12, **setup)
    assert phrase.startswith("old log-probabilities of the first minibatch come from the update's pass")


class LeavesOut(GRPO):
    """An algorithm of one's own that leaves out rollouts and does not say so beforehand."""

    def credit(self, inputs: CreditInputs) -> Credit:
        trains_B = torch.arange(len(inputs.rewards_BT)) % 2 == 0
        return replace(super().credit(inputs), trains_B=trains_B)


def test_rollouts_that_are_left_out_unannounced_are_refused(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], LeavesOut(minibatch_size=4, optimizer=SMOOTH))
    with pytest.raises(LearnerError, match=r"LeavesOut\.credit\(\) returned trains_B"):
        learner.update(groups_of_four())
