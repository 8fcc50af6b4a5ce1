"""SAPO, DPPO, GDPO, MaxRL, pass@k and tokens of high entropy: the papers' formulas, written anew."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError, LearnerError
from contracts.rollout import Rollout
from contracts.scores import Term
from contracts.settings import build
from learner.algorithms.critic_free import CriticFree
from learner.algorithms.dppo import DPPO
from learner.algorithms.gdpo import GDPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.gspo import GSPO
from learner.algorithms.inputs import RewardTerms
from learner.algorithms.max_rl import MaxRL
from learner.algorithms.pass_at_k import PassAtK
from learner.algorithms.rloo import RLOO
from learner.algorithms.sapo import SAPO
from learner.batches.batching import collate
from learner.functional.groups import decoupled_advantages, mean_normalized, pass_at_k_advantages
from learner.functional.high_entropy import high_entropy
from learner.functional.ratios import binary_kl, soft_gate, within_trust_region
from tests.learner.inputs import credit_inputs, loss_inputs
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts, rollout, snapshot

OLD = [0.2, 0.5, 0.9, 0.02, 0.6, 0.3]  # probabilities of six tokens of two responses
NEW = [0.45, 0.3, 0.95, 0.08, 0.2, 0.31]
GOOD = [1.5, -0.5, 1.5, 1.5, -0.5, -0.5]
ROWS = [0, 1, 0, 0, 1, 1]
ROWS.sort()


def logs(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().requires_grad_()


def tokens(new: torch.Tensor) -> Any:
    with torch.no_grad():
        old = logs(OLD).detach()
    return loss_inputs(
        ROWS, logprobs_N=new, old_logprobs_N=old, advantages_N=torch.tensor(GOOD, dtype=torch.float64)
    )


def derivative(loss: Any, place: int) -> float:
    """By a central difference, of a function of the new log-probabilities."""
    at = [math.log(p) for p in NEW]
    high, low = ([*at[:place], at[place] + h, *at[place + 1 :]] for h in (1e-6, -1e-6))
    return float(loss(high) - loss(low)) / 2e-6


def agrees(algorithm: CriticFree, loss: Any) -> None:
    """The loss of the six tokens, and its gradient at each."""
    new = logs(NEW)
    output = algorithm.loss(tokens(new))
    assert float(output.loss.detach()) == pytest.approx(loss([math.log(p) for p in NEW]), rel=1e-6)
    (gradient_N,) = torch.autograd.grad(output.loss, new)
    expected = [derivative(loss, place) for place in range(6)]
    assert gradient_N.tolist() == pytest.approx(expected, abs=1e-6)


# SAPO


@pytest.mark.parametrize("temperatures", [(1.0, 1.05), (2.0, 0.5)])
def test_sapos_loss_and_gradient_are_the_papers(temperatures: tuple[float, float]) -> None:
    def loss(new: list[float]) -> float:
        total = 0.0
        for response in (0, 1):
            of_response = list[float]()
            for p, q, a, row in zip(new, OLD, GOOD, ROWS, strict=True):
                tau = temperatures[0] if a > 0 else temperatures[1]
                gate = 4 / tau / (1 + math.exp(-tau * (math.exp(p) / q - 1)))
                of_response += [gate * a] if row == response else []
            total -= fmean(of_response) / 2
        return total

    positive, negative = temperatures
    agrees(SAPO(temperature_positive=positive, temperature_negative=negative), loss)


def test_the_gate_by_hand() -> None:
    # 4 · sigmoid(0) = 2, of τ = 2: 4/2 · sigmoid(2 · 0.5) = 2 · 0.731059
    gate = soft_gate(torch.tensor([1.0, 1.5]), torch.tensor([1.0, -1.0]), 1.0, 2.0)
    torch.testing.assert_close(gate, torch.tensor([2.0, 1.4621171]))


def test_at_the_sampling_policy_sapos_gradient_is_grpos() -> None:
    new = logs(OLD)
    ours = torch.autograd.grad(SAPO().loss(tokens(new)).loss, new)
    theirs = torch.autograd.grad(GRPO().loss(tokens(new)).loss, new)
    torch.testing.assert_close(ours, theirs)


# DPPO


@pytest.mark.parametrize("divergence", ["total_variation", "kl"])
def test_dppos_loss_and_gradient_are_the_papers(divergence: Any) -> None:
    bound = {"total_variation": 0.15, "kl": 0.05}[divergence]
    masked: list[bool] = []

    def size(p: float, q: float) -> float:
        if divergence == "total_variation":
            return abs(p - q)
        return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))

    def loss(new: list[float]) -> float:
        total = 0.0
        for lp, q, a in zip(new, OLD, GOOD, strict=True):
            away = (a > 0 and lp > math.log(q)) or (a < 0 and lp < math.log(q))
            kept = not (away and size(math.exp(lp), q) > bound)
            masked.append(not kept)
            total -= kept * math.exp(lp) / q * a / (10 * 2)
        return total

    algorithm = DPPO(divergence=divergence)
    agrees(algorithm, loss)
    assert algorithm.clip_range == bound
    share = float(algorithm.loss(tokens(logs(NEW))).metrics["clip_fraction"])
    assert share == pytest.approx(fmean(masked[:6])) and 0 < share < 1


def test_the_region_by_hand() -> None:
    """Good and bad tokens beyond the bound, up and down: only a further step away has no loss."""
    moved_N = torch.tensor([0.3, -0.3, 0.3, -0.3, 0.1, 0.3])
    good_N = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 0.0])
    kept = within_trust_region(moved_N, moved_N.abs(), good_N, 0.2, 0.2)
    assert kept.tolist() == [False, True, True, False, True, True]
    assert within_trust_region(moved_N, moved_N.abs(), good_N, 0.4, 0.2).tolist()[3]  # each side its own


@given(st.floats(-30, -1e-6), st.floats(-30, -1e-6))
def test_the_binary_kl_is_never_negative_and_zero_where_nothing_moved(old: float, new: float) -> None:
    kl_N = binary_kl(torch.tensor([old, old]).double(), torch.tensor([new, old]).double())
    assert kl_N[0] >= -1e-12 and kl_N[1] == 0


def test_a_certain_token_has_a_finite_kl() -> None:
    assert binary_kl(torch.tensor([-0.1, 0.0]), torch.tensor([0.0, 0.0])).isfinite().all()


def test_the_bound_of_a_kl_is_its_own_unless_one_is_given() -> None:
    assert [DPPO().clip_range, DPPO(divergence="kl").clip_range] == [0.15, 0.05]
    assert DPPO(divergence="kl", clip_range=0.3).clip_range == 0.3


# GDPO

VALUES = [[1.0, 30.0], [0.0, 10.0], [1.0, 20.0], [1.0, 5.0], [1.0, 5.0], [0.0, 8.0]]
GROUPS = [4, 4, 4, 9, 9, 9]


def by_the_paper(values: list[list[float]], groups: list[int], weights: list[float]) -> list[float]:
    summed = []
    for row, group in zip(values, groups, strict=True):
        total = 0.0
        for k, weight in enumerate(weights):
            of_group = [rewards[k] for rewards, other in zip(values, groups, strict=True) if other == group]
            total += weight * (row[k] - fmean(of_group)) / (stdev(of_group) + 1e-4)
        summed.append(total)
    return [(total - fmean(summed)) / (stdev(summed) + 1e-4) for total in summed]


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.25, -2.0]])
def test_gdpos_advantages_are_the_papers(weights: list[float]) -> None:
    weights_BK = torch.tensor(weights).expand(6, 2)
    advantages_B = decoupled_advantages(torch.tensor(VALUES), weights_BK, torch.tensor(GROUPS))
    assert advantages_B.tolist() == pytest.approx(by_the_paper(VALUES, GROUPS, weights), abs=1e-6)


def test_mixtures_that_sum_to_the_same_have_different_advantages() -> None:
    """Rewards (0, 1) and (1, 0), beside (0, 0) twice: GRPO can't tell the first two apart by their sums."""
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    apart = decoupled_advantages(values, torch.ones(4, 2), torch.zeros(4))
    assert apart[0] > apart[1] + 0.1  # the rarer one counts more
    rows = credit_inputs(values.sum(-1)[:, None].tolist(), groups=[0] * 4)
    assert GRPO().advantages(rows)[0] == GRPO().advantages(rows)[1]


def test_a_reward_that_says_nothing_counts_nowhere() -> None:
    values = torch.tensor([[1.0, math.nan], [0.0, 3.0], [0.0, 5.0]])
    advantages_B = decoupled_advantages(values, torch.ones(3, 2), torch.zeros(3))
    first = [(x - 1 / 3) / (stdev([1.0, 0.0, 0.0]) + 1e-4) for x in (1.0, 0.0, 0.0)]
    second = [0.0, -1 / (math.sqrt(2) + 1e-4), 1 / (math.sqrt(2) + 1e-4)]
    summed = [a + b for a, b in zip(first, second, strict=True)]
    expected = [(total - fmean(summed)) / (stdev(summed) + 1e-4) for total in summed]
    assert advantages_B.tolist() == pytest.approx(expected, abs=1e-6)


def with_terms(one: Rollout, **terms: float) -> Rollout:
    return replace(one, reward_terms={name: Term(value, 2.0) for name, value in terms.items()})


def test_the_learner_hands_each_rewards_value_on() -> None:
    first, second = random_rollouts(2)
    batch = collate([with_terms(first, format=1.0, length=30.0), with_terms(second, length=10.0)])
    assert isinstance(batch.reward_terms, RewardTerms)
    assert batch.reward_terms.weights_BK.tolist() == [[2.0, 2.0], [0.0, 2.0]]
    assert batch.reward_terms.values_BK[:, 1].tolist() == [30.0, 10.0]
    assert batch.reward_terms.values_BK[0, 0] == 1 and batch.reward_terms.values_BK[1, 0].isnan()
    assert collate([with_terms(first, length=1.0), second]).reward_terms is None  # one knows its total alone


def test_with_one_reward_gdpo_is_grpo_over_the_batchs_deviation() -> None:
    inputs = credit_inputs([[0, 1], [2], [5], [1]], groups=[4, 4, 9, 9])
    grpo = GRPO().advantages(inputs)
    torch.testing.assert_close(GDPO().advantages(inputs), grpo / (grpo.std() + 1e-4))


def test_groups_whose_rewards_differ_teach_even_where_their_sums_do_not() -> None:
    one, other = (replace(one, group=0) for one in random_rollouts(2))
    turns = tuple(turn.with_reward(1.0) for turn in one.turns)
    pair = [with_terms(replace(one, turns=turns), a=1.0, b=0.0)]
    pair += [with_terms(replace(other, turns=turns), a=0.0, b=1.0)]
    assert GDPO(drop_constant_groups=True).teaching(pair) == pair
    assert GRPO(drop_constant_groups=True).teaching(pair) == []


def test_gdpo_expects_one_role() -> None:
    one, other = random_rollouts(2)
    critic_turn = replace(other, turns=tuple(replace(turn, role="critic") for turn in other.turns))
    with pytest.raises(LearnerError, match=r"got rollouts of the roles .*critic.*: take algorithm=grpo"):
        GDPO().check([one, critic_turn])


def test_an_update_of_gdpo_follows_the_single_rewards(models: dict[str, Path]) -> None:
    """With the same totals, other parts give other weights."""
    rollouts = [replace(one, group=i // 4) for i, one in enumerate(random_rollouts(8))]
    weights = []
    for parts in ((lambda i: (i % 2, i % 3)), (lambda i: (i % 4, i % 2))):
        learner = make_learner(models["llama"], GDPO(learning_rate=1e-3, optimizer=SMOOTH))
        learner.update([with_terms(one, a=parts(i)[0], b=parts(i)[1]) for i, one in enumerate(rollouts)])
        weights.append(torch.cat([weight.flatten() for weight in snapshot(learner.pair).values()]))
    assert (weights[0] - weights[1]).abs().max() > 1e-5


# MaxRL


def test_maxrls_advantages_are_the_papers() -> None:
    """One of four passes: (1 - ¼) / ¼ = 3 and -1; all pass: 0; none: 0, where nothing could be divided."""
    scores = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0])
    advantages_N = mean_normalized(scores, torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]))
    assert advantages_N.tolist() == [3.0, -1, -1, -1, 0, 0, 0, 0]


def test_maxrls_gradient_is_on_average_that_of_the_truncated_likelihood() -> None:
    """Average over all outcomes of p = 0.3, N = 3: d/dp Σ_(k<N) pass@k / k is Σ_(k<N-1) (1 - p)^k."""
    p, size = 0.3, 3
    score = {1.0: 1 / p, 0.0: -1 / (1 - p)}  # d log P(outcome) / dp
    gradient = 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=size):
        chance = math.prod(p if reward else 1 - p for reward in outcome)
        advantages = mean_normalized(torch.tensor(outcome).double(), torch.zeros(size)).tolist()
        gradient += chance * fmean(a * score[reward] for a, reward in zip(advantages, outcome, strict=True))
    assert gradient == pytest.approx(sum((1 - p) ** k for k in range(size - 1)))


def test_scores_that_cancel_have_no_huge_advantages() -> None:
    """(-3 + 1) / 2 = -1, of a mean size of 2; a mean of nearly 0 divides nothing."""
    assert mean_normalized(torch.tensor([-3.0, 1.0]), torch.zeros(2)).tolist() == [-1.0, 1.0]
    assert mean_normalized(torch.tensor([1.0, -1.0, 1e-6]), torch.zeros(3)).abs().max() < 1.6
    inputs = credit_inputs([[0, 1], [0]], groups=[0, 0])
    assert MaxRL().credit(inputs).advantages_BT.tolist() == [[1.0, 1.0], [-1.0, 0.0]]


# Pass@k


@pytest.mark.parametrize(("size", "passed", "k"), [(4, 1, 2), (8, 3, 4), (6, 4, 2), (16, 2, 8), (5, 2, 1)])
def test_pass_at_ks_advantages_are_means_over_all_sets(size: int, passed: int, k: int) -> None:
    """By drawing every set of k: its reward less the mean, over the deviation, averaged at each response."""
    passes = [i < passed for i in range(size)]
    sets = list(itertools.combinations(range(size), k))
    rewards = [float(any(passes[i] for i in subset)) for subset in sets]
    mean = fmean(rewards)
    deviation = math.sqrt(fmean((r - mean) ** 2 for r in rewards))
    expected = [
        fmean((r - mean) / deviation for r, subset in zip(rewards, sets, strict=True) if i in subset)
        for i in range(size)
    ]
    advantages_N = pass_at_k_advantages(torch.tensor(passes), torch.full((size,), 7), k)
    assert advantages_N.tolist() == pytest.approx(expected, abs=1e-6)


def test_groups_that_always_or_never_pass_teach_nothing() -> None:
    passes = torch.tensor([True, True, False, False, False, False, True])
    advantages_N = pass_at_k_advantages(passes, torch.tensor([0, 0, 1, 1, 2, 2, 2]), 2)
    # the last group, of three with one that passes: R = 1 - 1/3
    assert advantages_N[:4].tolist() == [0, 0, 0, 0] and advantages_N[6] > 0 > advantages_N[4]


def test_pass_at_k_looks_at_rewards_as_they_are_paid() -> None:
    inputs = credit_inputs([[0, 1], [0.9], [0], [0]], groups=[0] * 4)
    scaled = replace(inputs, reward_deviation=0.1)
    assert torch.equal(PassAtK(k=2).advantages(inputs), PassAtK(k=2).advantages(scaled))
    assert (PassAtK(k=2).advantages(inputs) > 0).tolist() == [True, False, False, False]
    assert (PassAtK(k=2, pass_at=0.5).advantages(inputs) > 0).tolist() == [True, True, False, False]


def test_groups_without_a_set_that_fails_teach_nothing() -> None:
    """Sets of 2: group 1 has one failure, group 2 no response that passes, and only group 0 has both sets."""
    rewards = {0: (1.0, 0.5, 0.0), 1: (1.0, 1.0, 0.5), 2: (0.5, 0.25, 0.0), 3: (0.6 + 0.3 + 0.1, 0.5, 0.5)}
    rollouts = [
        replace(rollout(10 * group + i, (3,), (2,), reward), group=group)
        for group, paid in rewards.items()
        for i, reward in enumerate(paid)
    ]
    assert {one.group for one in PassAtK(k=2, drop_constant_groups=True).teaching(rollouts)} == {0, 3}
    assert PassAtK(k=2).teaching(rollouts) == rollouts


def test_a_group_of_k_is_refused() -> None:
    rollouts = [replace(one, group=0) for one in random_rollouts(4)]
    with pytest.raises(LearnerError, match=r"at most 4 responses with algorithm\.k=4.*rollout\.group_size=8"):
        PassAtK(k=4).check(rollouts)
    PassAtK(k=3).check(rollouts)


# Tokens of high entropy


@given(
    st.lists(st.floats(0, 5, width=32), min_size=1, max_size=30, unique=True),
    st.floats(0.05, 1.0),
)
def test_the_share_is_that_of_the_highest(drawn: list[float], share: float) -> None:
    entropies = torch.tensor([drawn])
    chosen = high_entropy(entropies, torch.ones_like(entropies), share)[0]
    count = int(chosen.sum())
    assert share * (len(drawn) - 1) < count <= share * (len(drawn) - 1) + 1 + 1e-6
    assert set(entropies[0][chosen].tolist()) == set(sorted(entropies[0].tolist())[-count:])
    flat = torch.quantile(entropies.double(), 1 - share)
    assert torch.equal(chosen, entropies[0].double() >= flat) or abs(flat - entropies.double()).min() < 1e-9


def test_only_forks_have_a_loss_and_all_count_in_its_denominator() -> None:
    rated = credit_inputs([[0, 1], [2]], groups=[0, 0])
    rated = replace(rated, entropies_BT=torch.tensor([[0.1, 3.0], [2.0, 9.0]]))  # 9: padding
    credit = GRPO(top_entropy_share=0.5).credit(rated)
    whole = GRPO().credit(rated)
    assert credit.advantages_BT.tolist() == [[0.0, whole.advantages_BT[0, 1]], [whole.advantages_BT[1, 0], 0]]


def test_truncated_responses_have_no_part_in_the_threshold() -> None:
    rated = credit_inputs([[0, 1], [2]], groups=[0, 0])
    rated = replace(
        rated,
        entropies_BT=torch.tensor([[0.1, 3.0], [9.0, 0.0]]),
        truncated_B=torch.tensor([False, True]),
    )
    credit = GRPO(top_entropy_share=0.5, filter_truncated=True).credit(rated)
    assert (credit.advantages_BT != 0).tolist() == [[False, True], [False, False]]


def test_where_all_responses_are_left_out_no_token_is_chosen() -> None:
    """The learner then says why there is nothing to train on."""
    rated = replace(credit_inputs([[0, 1], [2]], groups=[0, 0]), truncated_B=torch.tensor([True, True]))
    rated = replace(rated, entropies_BT=torch.ones(2, 2))
    credit = GRPO(top_entropy_share=0.5, filter_truncated=True).credit(rated)
    assert not credit.advantages_BT.any() and credit.trains_B is not None and not credit.trains_B.any()


def test_the_learner_scores_before_the_update_where_credit_reads_entropies(models: dict[str, Path]) -> None:
    rollouts = [replace(one, group=i // 4) for i, one in enumerate(random_rollouts(8))]
    updates = []
    for share in (1.0, 0.3):
        learner = make_learner(
            models["llama"], GRPO(learning_rate=1e-3, optimizer=SMOOTH, top_entropy_share=share)
        )
        metrics = learner.update(rollouts)
        assert metrics["entropy"] > 0
        updates.append((metrics, torch.cat([weight.flatten() for weight in snapshot(learner.pair).values()])))
    assert updates[1][0]["gradient_norm/policy"] < updates[0][0]["gradient_norm/policy"]
    assert (updates[0][1] - updates[1][1]).abs().max() > 1e-5


# Refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GSPO, {"top_entropy_share": 0.2}, "top_entropy_share=0.2.*expected top_entropy_share=1"),
        (RLOO, {"top_entropy_share": 0.2}, "a ratio is of a whole response"),
        (GDPO, {"kl": {"placement": "reward", "estimator": "k1"}}, "expected kl.placement=loss"),
        (GDPO, {"turn_gamma": 0.9}, "expected turn_gamma=1"),
        (
            PassAtK,
            {"kl": {"placement": "reward", "estimator": "k1", "coefficient": 0.1}},
            "expected kl.placement=loss",
        ),
        (MaxRL, {"kl": {"placement": "reward", "estimator": "k1", "coefficient": 0.1}}, "kl.placement=loss"),
        (PassAtK, {"k": 0}, "algorithm.k: got 0"),
        (SAPO, {"temperature_negative": 0.0}, "algorithm.temperature_negative: got 0"),
        (DPPO, {"divergence": "js"}, "'total_variation' or 'kl'"),
    ],
)
def test_what_can_not_be_meant_is_refused(
    kind: type[CriticFree], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(kind, options, where="algorithm")
