"""Dr. GRPO, DAPO, GSPO and CISPO: credit and loss worked by hand, and effects of truncation."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError, LearnerError
from contracts.rollout import FinishReason, Rollout, Sampling
from contracts.settings import build
from learner.algorithms.base import OptimizerSettings
from learner.algorithms.cispo import CISPO
from learner.algorithms.critic_free import CriticFree
from learner.algorithms.dapo import DAPO
from learner.algorithms.dr_grpo import DrGRPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.gspo import GSPO
from learner.algorithms.reinforce_pp import ReinforcePP
from learner.algorithms.rloo import RLOO
from learner.functional.rewards import overlong_penalty
from learner.optimization.kl_control import KLSettings
from tests.learner.inputs import credit_inputs, loss_inputs
from tests.learner.tiny import make_learner, random_rollouts, rollout, snapshot

LN2 = math.log(2)
NO_KL = KLSettings(placement="loss", estimator="k3", coefficient=0.0)


# As published


def test_defaults_are_the_papers() -> None:
    dapo, gspo, cispo, dr = DAPO(), GSPO(), CISPO(), DrGRPO()
    assert (dapo.clip_range, dapo.clip_range_high, dapo.aggregation) == (0.2, 0.28, "token_mean")
    assert (dapo.drop_constant_groups, dapo.max_refills, dapo.overlong_share) == (True, 9, 0.2)
    assert (gspo.clip_range, gspo.clip_range_high) == (3e-4, 4e-4)
    assert (cispo.clip_range, cispo.clip_range_high, cispo.aggregation) == (1.0, 4.0, "token_mean")
    assert dr.aggregation == "constant" and not dr.drop_constant_groups
    assert all(kind.kl.coefficient == 0 and kind.kl.placement == "loss" for kind in (dapo, gspo, cispo, dr))


def test_named_and_by_options_dr_grpo_is_one() -> None:
    named, composed = DrGRPO(), GRPO(scale_by_deviation=False, aggregation="constant", kl=NO_KL)
    inputs = credit_inputs([[0, 1], [5], [0]], groups=[4, 4, 4])
    assert named.credit(inputs).advantages_BT.tolist() == [[-1.0, -1.0], [3.0, 0.0], [-2.0, 0.0]]
    batch_inputs = loss_inputs([0, 0, 1], advantages_N=[1.0, 2.0, -1.0], logprobs_N=[LN2, 0.0, 0.0])
    assert float(named.loss(batch_inputs).loss) == float(composed.loss(batch_inputs).loss)
    # ρ = 2 is clipped to 1.2: -(1.2 + 2 - 1) / (10 tokens at most · 2 responses)
    assert float(named.loss(batch_inputs).loss) == pytest.approx(-2.2 / 20)


# Ratios


def test_gspo_by_hand() -> None:
    """Log-ratios (ln 2, 0) and 0: the ratios are √2 and 1; √2 is clipped to 1.0004, and -1 · 1 is added."""
    inputs = loss_inputs([0, 0, 1], advantages_N=[1.0, 1.0, -1.0], logprobs_N=[LN2, 0.0, 0.0])
    out = GSPO().loss(inputs)
    assert float(out.loss) == pytest.approx(-(1.0004 - 1.0) / 2, abs=1e-7)
    assert float(out.metrics["clip_fraction"]) == 0.5
    assert float(out.metrics["ratio/mean"]) == pytest.approx((math.sqrt(2) + 1) / 2)
    # for a bad response the smaller gain counts, so its √2 stays; a ratio below counts as it is, too
    bad = loss_inputs([0, 0], advantages_N=[-1.0, -1.0], logprobs_N=[LN2, 0.0])
    assert float(GSPO().loss(bad).loss) == pytest.approx(math.sqrt(2))


def test_gspos_gradient_is_the_responses_ratio_spread_over_its_tokens() -> None:
    logprobs_N = torch.tensor([1e-4, 0.0, 0.0], requires_grad=True)
    inputs = replace(loss_inputs([0, 0, 1], advantages_N=[3.0, 3.0, 1.0]), logprobs_N=logprobs_N)
    GSPO().loss(inputs).loss.backward()
    ratio = math.exp(0.5e-4)
    expected = [-ratio * 3 / 2 / 2, -ratio * 3 / 2 / 2, -1 / 2]
    assert logprobs_N.grad is not None
    assert logprobs_N.grad.tolist() == pytest.approx(expected)


def test_cispo_by_hand() -> None:
    """ρ = (8, 1, ½): weights 5, 1, ½; -(5 · 1 · ln 8 + 1 · 1 · 0 + ½ · -1 · ln ½) / 3, sg on the weights."""
    logprobs_N = torch.tensor([3 * LN2, 0.0, -LN2], requires_grad=True)
    inputs = replace(loss_inputs([0, 0, 1], advantages_N=[1.0, 1.0, -1.0]), logprobs_N=logprobs_N)
    out = CISPO().loss(inputs)
    assert out.loss.item() == pytest.approx(-(5 * 3 * LN2 + 0.5 * LN2) / 3)
    out.loss.backward()
    assert logprobs_N.grad is not None
    assert logprobs_N.grad.tolist() == pytest.approx([-5 / 3, -1 / 3, 0.5 / 3])
    # PPO's clipping leaves the first token without any pull; here it keeps one
    clipped_N = logprobs_N.detach().clone().requires_grad_()
    GRPO(kl=NO_KL).loss(replace(inputs, logprobs_N=clipped_N)).loss.backward()
    assert clipped_N.grad is not None and clipped_N.grad[0] == 0


def test_cispo_has_a_lower_bound_where_one_is_asked_for() -> None:
    inputs = loss_inputs([0], advantages_N=[1.0], logprobs_N=[-3 * LN2])  # ρ = 1/8
    assert float(CISPO().loss(inputs).loss) == pytest.approx(3 * LN2 / 8)
    assert float(CISPO(clip_range=0.5).loss(inputs).loss) == pytest.approx(3 * LN2 / 2)


def test_cispo_at_the_sampling_policy_is_reinforce() -> None:
    logprobs_N = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    inputs = loss_inputs([0, 0, 1], advantages_N=[0.5, 0.5, -2.0], old_logprobs_N=[-1.0, -2.0, -0.5])
    CISPO().loss(replace(inputs, logprobs_N=logprobs_N)).loss.backward()
    assert logprobs_N.grad is not None
    assert logprobs_N.grad.tolist() == pytest.approx([-0.5 / 3, -0.5 / 3, 2 / 3])


def test_dapo_clips_further_upwards_and_counts_tokens() -> None:
    # ρ = 2 and ½: 1.28 for the good token, and ½ → the bad token's clip at .8 holds it: -.8
    inputs = loss_inputs([0, 0, 1], advantages_N=[1.0, 1.0, -1.0], logprobs_N=[LN2, 0.0, -LN2])
    assert float(DAPO().loss(inputs).loss) == pytest.approx(-(1.28 + 1 - 0.8) / 3)


# The penalty on length


def test_the_penalty_by_hand() -> None:
    """The last four of 20 tokens are the cache: 16 cost nothing, 17 a quarter, 20 all of 1."""
    lengths_B = torch.tensor([1, 16, 17, 18, 20])
    assert overlong_penalty(lengths_B, 20, 0.2).tolist() == pytest.approx([0, 0, -0.25, -0.5, -1.0])


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.01, 1))
def test_the_penalty_falls_from_zero_to_minus_one(one: int, other: int, share: float) -> None:
    lengths_B = torch.tensor(sorted([one, other, 500]))
    penalties_B = overlong_penalty(lengths_B, 500, share)
    assert (penalties_B.diff() <= 0).all() and penalties_B[-1] == -1
    assert (penalties_B <= 0).all()


def test_dapos_credit_by_hand() -> None:
    """Four tokens at most, half of them cache: rewards 1, 1, 0 with 0, -½, -1 are 1, ½, -1."""
    rewards = [[0, 1], [0, 0, 1], [0, 0, 0, 0]]
    inputs = replace(credit_inputs(rewards, groups=[0, 0, 0]), max_tokens=4)
    mean = (1 + 0.5 - 1) / 3
    deviation = math.sqrt(sum((score - mean) ** 2 for score in (1, 0.5, -1)) / 2)
    expected = [(score - mean) / (deviation + 1e-4) for score in (1, 0.5, -1)]
    advantages_BT = DAPO(overlong_share=0.5).credit(inputs).advantages_BT
    assert advantages_BT[:, 0].tolist() == pytest.approx(expected)
    without = DAPO(overlong_share=0.0).credit(inputs).advantages_BT
    assert without[0, 0] == without[1, 0] > 0


# Truncated responses


def cut(one: Rollout) -> Rollout:
    return replace(one, finish_reason=FinishReason.LENGTH)


def test_the_filter_leaves_truncated_responses_out_of_the_loss_and_in_the_baseline(
    models: dict[str, Path],
) -> None:
    """The update is that of the others alone, with advantages that count the truncated one."""
    rewards = [3.0, 1.0, 2.0, -1.0]
    whole = [rollout(i, (3, 4), (5 + i, 6, 2)[i % 2 :], reward) for i, reward in enumerate(rewards)]
    whole = [replace(one, group=0) for one in whole]
    with_cut = [*whole[:3], cut(whole[3])]
    options = {"learning_rate": 1e-3, "max_grad_norm": None, "kl": NO_KL}

    def moved(algorithm: CriticFree, rollouts: list[Rollout]) -> tuple[dict[str, torch.Tensor], float]:
        learner = make_learner(models["llama"], algorithm)
        metrics = learner.update(rollouts)
        return snapshot(learner.pair), metrics["rollouts/trained"]

    class Given(GRPO):
        """The advantages of all four, for three."""

        def advantages(self, inputs: object) -> torch.Tensor:
            scores_B = torch.tensor(rewards)
            return ((scores_B - scores_B.mean()) / (scores_B.std() + 1e-4))[:3]

    filtered, trained = moved(GRPO(filter_truncated=True, **options), with_cut)
    expected, _ = moved(Given(**options), whole[:3])
    assert trained == 3
    for name, parameter in filtered.items():
        torch.testing.assert_close(parameter, expected[name], atol=1e-6, rtol=1e-5)
    by_turns = [replace(one, finish_reason=FinishReason.CUT) for one in whole]  # by environment.max_turns
    assert moved(GRPO(filter_truncated=True, **options), by_turns)[1] == 4
    unfiltered, trained = moved(GRPO(**options), with_cut)
    assert trained == 4
    assert any(not torch.allclose(unfiltered[name], weight, atol=1e-5) for name, weight in filtered.items())


def test_a_batch_of_truncated_responses_is_refused(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], DAPO(filter_truncated=True))
    rollouts = [replace(cut(one), group=i // 4) for i, one in enumerate(random_rollouts(8))]
    with pytest.raises(LearnerError, match=r"all 8 responses were cut off .* a higher rollout.max_tokens"):
        learner.update(rollouts)


def test_the_learner_hands_the_limit_of_tokens_on(models: dict[str, Path]) -> None:
    """Two equal rewards, one answer at the limit: where groups are not dropped, its length tells."""
    kept = [rollout(0, (3,), (5, 2), 1.0), rollout(1, (3,), (5, 6, 7, 8), 1.0)]
    kept = [replace(one, group=0) for one in kept]
    options = {"drop_constant_groups": False, "max_refills": 0, "learning_rate": 1e-2, "overlong_share": 0.5}
    algorithm = DAPO(**options, optimizer=OptimizerSettings(weight_decay=0.0))
    learner = make_learner(models["llama"], algorithm, sampling=Sampling(max_tokens=4))
    before = snapshot(learner.pair)
    learner.update(kept)
    assert any(not torch.equal(before[name], weight) for name, weight in snapshot(learner.pair).items())
    still = make_learner(models["llama"], algorithm)  # without a limit to tell of, nothing is too long
    still.update(kept)
    assert all(torch.equal(before[name], weight) for name, weight in snapshot(still.pair).items())


# Groups that teach


def test_teaching_groups_are_those_whose_rewards_differ() -> None:
    rewards = {0: (1.0, 1.0), 1: (0.0, 1.0), 2: (0.0, 0.0), 3: (0.5,)}
    rollouts = [
        replace(rollout(10 * group + i, (3,), (2,), reward), group=group)
        for group, of_group in rewards.items()
        for i, reward in enumerate(of_group)
    ]
    for algorithm in (DAPO(), CISPO(), GRPO(drop_constant_groups=True), RLOO(drop_constant_groups=True)):
        assert {one.group for one in algorithm.teaching(rollouts)} == {1}
        assert algorithm.select(rollouts, [])[0] == algorithm.teaching(rollouts)
        assert algorithm.select(rollouts[:2], [])[0] == rollouts[:2]  # never nothing
    assert GRPO().teaching(rollouts) == rollouts
    assert [kind.refills for kind in (DAPO(), DAPO(max_refills=0), GRPO(), CISPO())] == [9, 0, 0, 9]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GRPO, {"max_refills": 3}, "got max_refills=3 with drop_constant_groups=false"),
        (DAPO, {"drop_constant_groups": False}, "got max_refills=9 with drop_constant_groups=false"),
        (ReinforcePP, {"drop_constant_groups": True}, "this algorithm compares no groups"),
        (DAPO, {"overlong_share": 1.5}, "overlong_share: got 1.5"),
        (DAPO, {"max_refills": -1}, "max_refills: got -1"),
    ],
)
def test_what_can_not_be_meant_is_refused(kind: type[CriticFree], options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(kind, options, where="algorithm")
