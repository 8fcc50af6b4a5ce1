"""The algorithms that learn from a data set, through the learner: gradients by hand, weights of one at first,
groups in one piece, and what data they refuse.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from contracts.components import find
from contracts.errors import LearnerError
from contracts.rollout import FinishReason, Rollout
from learner.algorithms import ALGORITHMS
from learner.algorithms.a_lol import ALoL, ALoLKL, ALoLReferenceFree, ALoLSequence
from learner.algorithms.base import Algorithm, LossInputs, OptimizerSettings
from learner.algorithms.classes import algorithm_class
from learner.algorithms.dpo import DPO
from learner.algorithms.nll import NLL
from learner.algorithms.offline import Offline
from learner.algorithms.pro import PRO
from learner.algorithms.r_gold import RGold
from learner.algorithms.r_lol import RLoL
from learner.algorithms.wbc import WBC
from learner.batches.batching import collate
from learner.learner import Learner
from learner.models.actor_critic import ActorCritic
from tests.learner.precision import in_float64
from tests.learner.seq2seq import plain_logprobs as plain_seq2seq_logprobs
from tests.learner.seq2seq import single_turns
from tests.learner.test_every_algorithm import in_both_families, watched
from tests.learner.tiny import (
    games,
    make_learner,
    perturb,
    plain_logprobs,
    random_rollouts,
    rollout,
    snapshot,
    whole,
    without_times,
)

FROM_DATA = [name for name in ALGORITHMS if algorithm_class(name).traits.learns_from == "data"]
PAIRS = {"dpo", "ipo", "simpo", "orpo"}
RANKED = {**dict.fromkeys(PAIRS, 2), "pro": 3}  # responses of a prompt
every = pytest.mark.parametrize("name", FROM_DATA)
families = pytest.mark.parametrize("family", ["llama", "t5"])
weighted = pytest.mark.parametrize("algorithm", [RLoL(), ALoL(), ALoLSequence()])


def algorithm_of(name: str, **options: Any) -> Algorithm:
    return find("algorithm", name, ALGORITHMS)(**options)  # type: ignore[no-any-return]


@torch.no_grad()
def scored(pair: ActorCritic, rollouts: Sequence[Rollout], group_size: int = 1) -> list[Rollout]:
    """A data set: log-probabilities of the model as it is, values, and rewards that fall within a group."""
    batch = collate(rollouts)
    logprobs_BT, micro = torch.zeros_like(batch.rewards_BT), whole(batch)
    micro.place(logprobs_BT, pair.policy(micro))
    made = []
    for row, one in enumerate(rollouts):
        turns, begin = [], 0
        for turn in one.turns:
            end = begin + len(turn.tokens)
            turns.append(replace(turn, behavior_logprobs=tuple(logprobs_BT[row, begin:end].tolist())))
            begin = end
        if group_size > 1:
            turns = [replace(turn, reward=0.0) for turn in turns]
            turns[-1] = replace(turns[-1], reward=1.5 - row % group_size)
        made.append(replace(one, turns=tuple(turns), baseline=0.1 * row - 0.3, group=row // group_size))
    return made


def learner_and_data(
    path: Path, algorithm: Algorithm, rollouts: Sequence[Rollout], **settings: Any
) -> tuple[Learner, list[Rollout]]:
    """The policy has gone a little from the reference that scored the data."""
    learner = make_learner(path, algorithm, **settings)
    data = scored(learner.pair, rollouts, RANKED.get(name_of(algorithm), 1))
    perturb(learner.pair, 0.01)  # weights of responses far and near
    return learner, data


def name_of(algorithm: Algorithm) -> str:
    return next(name for name, kind in ALGORITHMS.items() if issubclass(type(algorithm), find("", kind, {})))


# Gradients by hand

Response = tuple[Tensor, Tensor, float, float]  # log π, log π_ref of each token; reward; value


def whole_weight(logprobs: Tensor, ref: Tensor) -> Tensor:
    return (logprobs.detach() - ref).sum().exp().clamp(0.1, 1.9)


def advantage(reward: float, value: float) -> float:
    return max(reward - value, 0.0)


# (log π, log π_ref, R, V) of a response
BY_HAND: list[tuple[Offline, Callable[[Tensor, Tensor, float, float], Tensor]]] = [
    (NLL(), lambda p, ref, r, v: -p.sum()),
    (NLL(reduction="mean"), lambda p, ref, r, v: -p.mean()),
    (WBC(), lambda p, ref, r, v: -r * p.sum()),
    (RGold(), lambda p, ref, r, v: -r * (p.detach().exp().clamp(min=0.1) * p).sum()),
    (RLoL(), lambda p, ref, r, v: -r * whole_weight(p, ref) * p.sum()),
    (
        RLoL(kl_beta=0.3, kl_form="log_ratio"),  # the source's: no weights
        lambda p, ref, r, v: -r * p.sum() + 0.3 * (p - ref).sum(),
    ),
    (
        RLoL(kl_beta=0.3),
        lambda p, ref, r, v: (
            -r * whole_weight(p, ref) * p.sum()
            + 0.3 * ((p - ref).exp() * (p - ref) - (p - ref).exp() + 1).sum()
        ),
    ),
    (ALoL(), lambda p, ref, r, v: -advantage(r, v) * whole_weight(p, ref) * p.sum()),
    (
        ALoL(ppo_clip=None, reduction="mean"),
        lambda p, ref, r, v: -advantage(r, v) * (p.detach() - ref).sum().exp() * p.mean(),
    ),
    (ALoLReferenceFree(), lambda p, ref, r, v: -advantage(r, v) * p.sum()),
    (ALoLReferenceFree(negative_advantages=True), lambda p, ref, r, v: -(r - v) * p.sum()),
    (
        ALoLSequence(ppo_clip=0.2),
        lambda p, ref, r, v: -advantage(r, v) * ((p.detach() - ref).exp().clamp(0.8, 1.2) * p).sum(),
    ),
    (ALoLKL(), lambda p, ref, r, v: -advantage(r, v) * p.sum() + 0.2 * (p - ref).sum()),
    (
        ALoLKL(kl_beta=0.5, kl_form="unbiased"),
        lambda p, ref, r, v: (
            -advantage(r, v) * p.sum() + 0.5 * ((p - ref).exp() * (p - ref) - (p - ref).exp() + 1).sum()
        ),
    ),
]


def sigmoid_of_margin(chosen: Response, rejected: Response) -> Tensor:
    """log σ of β times the difference of log π/π_ref."""
    return logsigmoid(0.1 * ((chosen[0] - chosen[1]).sum() - (rejected[0] - rejected[1]).sum()))


def dpo_by_hand(chosen: Response, rejected: Response) -> Tensor:
    return -sigmoid_of_margin(chosen, rejected)


def smoothed_by_hand(chosen: Response, rejected: Response) -> Tensor:
    return -0.8 * sigmoid_of_margin(chosen, rejected) - 0.2 * sigmoid_of_margin(rejected, chosen)


def reference_free_by_hand(chosen: Response, rejected: Response) -> Tensor:
    return -logsigmoid(0.3 * (chosen[0].sum() - rejected[0].sum()))


def ipo_by_hand(chosen: Response, rejected: Response) -> Tensor:
    margin = (chosen[0] - chosen[1]).mean() - (rejected[0] - rejected[1]).mean()
    return (margin - 5).square()  # 1 / (2 · 0.1)


def pro_by_hand(*ranked: Response) -> Tensor:
    loss = -0.05 * (len(ranked) - 1) ** 2 * ranked[0][0].sum()
    for k, best in enumerate(ranked[:-1]):
        gaps = [best[2] - worse[2] for worse in ranked[k + 1 :]]
        terms = [best[0].mean() * max(gaps)]
        terms += [worse[0].mean() * gap for worse, gap in zip(ranked[k + 1 :], gaps, strict=True)]
        loss = loss - torch.stack(terms).log_softmax(0)[0]
    return loss


RANKED_BY_HAND: list[tuple[Algorithm, Callable[..., Tensor]]] = [
    (DPO(), dpo_by_hand),
    (DPO(label_smoothing=0.2), smoothed_by_hand),
    (DPO(beta=0.3, reference_free=True), reference_free_by_hand),
    (DPO(loss_type="ipo"), ipo_by_hand),
    (PRO(), pro_by_hand),
]


def responses(learner: Learner, data: Sequence[Rollout], family: str) -> list[Response]:
    """By the model's own forward of each response alone."""
    plain = plain_seq2seq_logprobs if family == "t5" else plain_logprobs
    return [
        (
            plain(learner.pair.lm, one),
            torch.tensor(one.turns[0].behavior_logprobs),
            one.total_reward,
            one.baseline or 0.0,
        )
        for one in data
    ]


def gradient_of_update(
    learner: Learner, data: Sequence[Rollout]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradient of a step, and the update's metrics."""
    learner.optimizer.step = lambda *_: None  # type: ignore[method-assign,assignment]
    metrics = learner.update(data)
    return {
        name: parameter.grad.clone()
        for name, parameter in learner.pair.lm.named_parameters()
        if parameter.grad is not None
    }, metrics


def same_gradient(learner: Learner, loss: Tensor, gradients: dict[str, Tensor]) -> None:
    named = {name: parameter for name, parameter in learner.pair.lm.named_parameters() if name in gradients}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    assert largest > 1e-3
    for name, expected in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(gradients[name], expected, atol=1e-4 * largest, rtol=1e-3)


def without_clipping(algorithm: Algorithm) -> Algorithm:
    return algorithm.model_copy(update={"max_grad_norm": None, "minibatch_size": None})  # type: ignore


@families
@pytest.mark.parametrize(("algorithm", "by_hand"), BY_HAND)
def test_the_gradient_is_that_of_the_formula(
    models: dict[str, Path],
    seq2seq: dict[str, Path],
    algorithm: Offline,
    by_hand: Callable[..., Tensor],
    family: str,
) -> None:
    path = (models | seq2seq)[family]
    learner, data = learner_and_data(path, without_clipping(algorithm), single_turns(6), token_budget=30)
    known = responses(learner, data, family)
    gradients, metrics = gradient_of_update(learner, data)
    loss = torch.stack([by_hand(*one) for one in known]).mean()
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-4)
    same_gradient(learner, loss, gradients)


@families
@pytest.mark.parametrize(("algorithm", "by_hand"), RANKED_BY_HAND)
def test_the_gradient_is_that_of_the_ranking(
    models: dict[str, Path],
    seq2seq: dict[str, Path],
    algorithm: Algorithm,
    by_hand: Callable[..., Tensor],
    family: str,
) -> None:
    path = (models | seq2seq)[family]
    learner, data = learner_and_data(path, without_clipping(algorithm), single_turns(6), token_budget=30)
    known = responses(learner, data, family)
    gradients, metrics = gradient_of_update(learner, data)
    size = RANKED[name_of(algorithm)]
    prompts = [known[start : start + size] for start in range(0, len(known), size)]
    loss = torch.stack([by_hand(*prompt) for prompt in prompts]).mean()
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-4)
    same_gradient(learner, loss, gradients)


def test_a_shifted_mask_leaves_out_the_first_token_and_scores_an_end_behind_the_last() -> None:
    whole_one, cut = rollout(0, (12, 14), (15, 17, 2), 1.0), rollout(1, (12, 14), (16, 18), 0.5)
    cut = replace(cut, finish_reason=FinishReason.LENGTH)
    (first, second), _ = PRO(suffix_mask="shifted").select([whole_one, cut], [])
    assert [(one.turns[0].observation, one.turns[0].tokens) for one in (first, second)] == [
        ((12, 14, 15), (17, 2, 2)),
        ((12, 14, 16), (18, 2)),
    ]
    assert (first.total_reward, second.total_reward) == (1.0, 0.5)
    assert PRO().select([whole_one, cut], []) == ([whole_one, cut], [])
    alike = [
        replace(rollout(i, (12,), (15 + i, 2), -i), group=0) for i in range(2)
    ]  # but for the first token
    PRO().check(PRO(suffix_mask="shifted").select(alike, [])[0])


def test_the_gradient_with_a_shifted_mask_is_that_of_the_ranking(models: dict[str, Path]) -> None:
    """By one forward of prompt, response and end, of which the positions 2 … T + 1 are scored."""
    algorithm = without_clipping(PRO(suffix_mask="shifted"))
    learner, data = learner_and_data(models["llama"], algorithm, single_turns(6), token_budget=30)
    end = data[0].turns[0].tokens[-1]
    known: list[Response] = []
    for one in data:
        (turn,) = one.turns
        tokens = torch.tensor([*turn.observation, *turn.tokens, end])
        logprobs_LV = learner.pair.lm(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        scored_from = len(turn.observation) + 1
        logprobs = logprobs_LV[scored_from - 1 : -1].gather(-1, tokens[scored_from:, None]).squeeze(-1)
        known.append((logprobs, logprobs, one.total_reward, 0.0))
        assert len(logprobs) == len(turn.tokens)
    gradients, metrics = gradient_of_update(learner, data)
    loss = torch.stack([pro_by_hand(*known[:3]), pro_by_hand(*known[3:])]).mean()
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-4)
    same_gradient(learner, loss, gradients)


# Before the first step


@families
@weighted
def test_weights_are_one_at_first_to_the_bit_where_the_pass_is_the_same(
    models: dict[str, Path], seq2seq: dict[str, Path], algorithm: Algorithm, family: str
) -> None:
    learner = make_learner((models | seq2seq)[family], algorithm)
    assert learner.reference is None
    for one in single_turns(3):  # alone, as the reference saw them
        fresh = make_learner((models | seq2seq)[family], algorithm)
        # PyTorch computes T5's attention by another kernel where there are no gradients: equal to rounding
        with contextlib.ExitStack() as precise:
            if family == "t5":
                precise.enter_context(in_float64(learner))
                precise.enter_context(in_float64(fresh))
            metrics = fresh.update(scored(learner.pair, [replace(one, baseline=0.0)]))
        assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-9 if family == "t5" else 0.0)
        assert metrics["ratio/mean"] == pytest.approx(1.0, abs=2e-5)  # a mean of ones: their sum is rounded
        assert metrics["clip_fraction"] == 0.0


def test_dpo_begins_without_a_margin(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], DPO())
    metrics = learner.update(scored(learner.pair, random_rollouts(8), 2))
    assert metrics["loss/policy"] == pytest.approx(np.log(2), abs=1e-5)
    assert metrics["rewards/margin"] == pytest.approx(0.0, abs=1e-5)


def test_what_an_update_says_by_hand(models: dict[str, Path]) -> None:
    """Three responses of one token, likelier by e^1, e^-3 and e^0.5 than the reference made them."""
    learner = make_learner(models["llama"], ALoL(ppo_clip=0.9, minibatch_size=None), token_budget=1)
    data = []
    for i, (log_ratio, reward) in enumerate([(1.0, 0.9), (-3.0, 0.1), (0.5, 0.8)]):
        one = rollout(i, (3, 4), (5 + i,), reward)
        now = plain_logprobs(learner.pair.lm, one).item()
        data.append(replace(rollout(i, (3, 4), (5 + i,), reward, logprobs=[now - log_ratio]), baseline=0.5))
    metrics = learner.update(data)
    ratios = np.exp([1.0, -3.0, 0.5])
    assert metrics["ratio/mean"] == pytest.approx(ratios.mean(), rel=1e-4)
    assert metrics["ratio/max"] == pytest.approx(ratios[0], rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(2 / 3)  # 2.72 and 0.05 are outside of [0.1, 1.9]
    assert metrics["advantage/mean"] == pytest.approx((0.4 - 0.4 + 0.3) / 3, abs=1e-6)
    assert metrics["share_positive"] == pytest.approx(2 / 3)


# How a batch is laid out


def smooth(name: str) -> Algorithm:
    options: dict[str, Any] = {"learning_rate": 3e-3, "num_epochs": 3, "minibatch_size": None}
    return algorithm_of(name, **options, optimizer=OptimizerSettings(eps=1e-3))


@in_both_families(FROM_DATA, quick=("a_lol", "dpo"))
def test_neither_splitting_nor_padding_nor_order_changes_an_update(
    models: dict[str, Path], seq2seq: dict[str, Path], name: str, family: str
) -> None:
    path, rollouts = (models | seq2seq)[family], games(12, always_fresh=family == "t5")
    learner, data = learner_and_data(path, smooth(name), rollouts)
    start = snapshot(learner.pair)
    # T5's gradients are small here, and AdamW divides rounding by them: float64 has next to none.
    precise = in_float64 if family == "t5" else nullcontext
    close = {"atol": 1e-9, "rtol": 1e-9} if family == "t5" else {"atol": 2e-5, "rtol": 1e-4}
    with precise(learner):
        metrics, expected = without_times(learner.update(data)), snapshot(learner.pair)
    assert max(float((expected[key] - start[key]).abs().max()) for key in start) > 1e-3
    for order, settings in ((1, {"token_budget": 1}), (-1, {"token_budget": 30, "logits_budget": 100})):
        other, _ = learner_and_data(path, smooth(name), rollouts, **settings)
        with precise(other):
            assert without_times(other.update(data[::order])) == pytest.approx(metrics, abs=1e-4, rel=1e-3)
        for key, parameter in snapshot(other.pair).items():
            torch.testing.assert_close(parameter, expected[key], **close)


def test_the_responses_of_a_prompt_stay_together_best_first(models: dict[str, Path]) -> None:
    seen: list[LossInputs] = []
    algorithm = watched(PRO(minibatch_size=7), seen)  # two prompts with three responses each
    learner = make_learner(models["llama"], algorithm, token_budget=1)
    data = scored(learner.pair, games(15), 3)
    shuffled = [data[i] for i in np.random.default_rng(0).permutation(15)]
    # groups need not lie side by side
    apart = [replace(one, lease_id=100 * (i % 3) + i // 3) for i, one in enumerate(data)]
    for rollouts in (shuffled, apart):
        seen.clear()
        learner.update(rollouts)
        assert [batch.num_rollouts for batch in seen] == [6, 6, 6, 6, 3]
        for batch in seen:
            rewards = batch.advantages_N[batch.rows_N.diff(prepend=torch.tensor([-1])) == 1].tolist()
            assert (batch.group_size, rewards) == (3, [1.5, 0.5, -0.5])


def test_a_batch_of_prompts_keeps_a_value_each() -> None:
    first, second = random_rollouts(2)
    assert collate([replace(first, baseline=0.25), second]).baseline_B.tolist() == [0.25, 0.0]


# Which responses an epoch draws


def test_an_epoch_is_drawn_by_what_a_response_is_worth() -> None:
    rewards, values = np.array([0.9, 0.2, 0.6]), np.array([0.5, 0.5, 0.5])
    chosen = {
        kind.__name__: sorted(
            kind(sampling_strategy="good_random")
            .select_epoch(rewards, values, seed=0, epoch=0)
            .order_E.tolist()
        )
        for kind in (NLL, WBC, ALoL)
    }
    assert chosen == {"NLL": [0, 2], "WBC": [0, 1, 2], "ALoL": [0, 2]}
    unknown = np.full(3, np.nan)
    assert sorted(NLL().select_epoch(unknown, unknown, seed=0, epoch=0).order_E.tolist()) == [0, 1, 2]
    assert len(WBC().select_epoch(rewards, unknown, seed=0, epoch=0).order_E) == 3


@pytest.mark.parametrize("strategy", [None, "good_priority", "all_priority"])
def test_a_data_set_without_a_positive_advantage_is_refused(strategy: Any) -> None:
    rewards, values = np.array([0.1, 0.2]), np.array([0.5, 0.5])
    with pytest.raises(LearnerError, match=r"0 of 2 advantages .*above 0, the highest is -0\.3"):
        ALoL(sampling_strategy=strategy).select_epoch(rewards, values, seed=0, epoch=0)
    both = ALoLReferenceFree(negative_advantages=True)
    assert len(both.select_epoch(rewards, values, seed=0, epoch=0).order_E) == 2


def test_a_rejected_responses_advantage_is_none_of_the_good_ones() -> None:
    rewards, values = np.array([0.9, 0.2]), np.array([0.5, 0.5])
    with pytest.raises(LearnerError, match="0 of 1 advantages"):
        ALoL().select_epoch(rewards, values, seed=0, epoch=0, good_M=np.array([False, True]))


# What is refused, before a weight moves


def unscored(one: Rollout) -> Rollout:
    return replace(one, turns=tuple(replace(turn, reward=None) for turn in one.turns))


def with_reward(one: Rollout, reward: float) -> Rollout:
    return replace(one, turns=(*one.turns[:-1], replace(one.turns[-1], reward=reward)))


def unasked(one: Rollout) -> Rollout:
    zeros = [replace(turn, behavior_logprobs=(0.0,) * len(turn.tokens)) for turn in one.turns]
    return replace(one, turns=tuple(zeros))


def at(
    places: Sequence[int], change: Callable[[Rollout], Rollout]
) -> Callable[[list[Rollout]], list[Rollout]]:
    return lambda data: [change(one) if i in places else one for i, one in enumerate(data)]


ALL = range(6)


@pytest.mark.parametrize(
    ("names", "broken", "message"),
    [
        (
            set(FROM_DATA) - {"nll"} - PAIRS,
            at([2, 5], unscored),
            r"of 6 responses 2 have no reward and 0 .*p2 \(lease 2\)",
        ),
        (
            set(FROM_DATA) - {"nll"} - PAIRS,
            at([1], lambda one: with_reward(one, float("nan"))),
            r"of 6 responses 0 have no reward and 1 one that is NaN or infinite",
        ),
        (
            {"a_lol", "a_lol_kl", "a_lol_ref_free", "a_lol_seq"},
            at([0, 1, 2], lambda one: replace(one, baseline=None)),
            "of 6 responses 3 have no value of its prompt",
        ),
        (
            {"r_lol", "a_lol", "a_lol_kl", "a_lol_seq", "dpo", "ipo", "kto"},
            at(ALL, unasked),
            "none of 6 responses has log-probabilities of the reference",
        ),
        (
            {*PAIRS, "pro"},
            lambda data: [data[0], replace(data[0], lease_id=1), *data[2:]],
            r"1 of [23] prompts have equal responses, the first is p0 \(group 0\)",
        ),
        (
            {*PAIRS, "pro"},
            at(ALL, lambda one: replace(one, group=one.lease_id)),
            "6 of 6 prompts have one response alone",
        ),
        (
            PAIRS,
            at([1, 2], lambda one: replace(one, group=0)),
            "1 of 3 prompts have one response alone, the first is p3",
        ),
        (PAIRS, at(ALL, lambda one: replace(one, group=0)), "1 of 1 prompts have more than two responses"),
        ({"pro"}, lambda data: [*data[3:5], *data[:3]], "different numbers of responses: 1 of 2, 1 of 3"),
        (
            {"pro"},
            at([2], lambda one: with_reward(one, 9.0)),
            "1 of 2 prompts have rewards that form no ranking",
        ),
    ],
)
def test_data_that_are_no_good(
    models: dict[str, Path],
    names: set[str],
    broken: Callable[[list[Rollout]], list[Rollout]],
    message: str,
) -> None:
    for name in sorted(names):
        learner = make_learner(models["llama"], algorithm_of(name))
        data = scored(learner.pair, single_turns(6), RANKED.get(name, 1))
        data = [replace(one, prompt=replace(one.prompt, id=f"p{i}")) for i, one in enumerate(data)]
        before = snapshot(learner.pair)
        with pytest.raises(LearnerError, match=message):
            learner.update(broken(data))
        assert all(torch.equal(before[key], parameter) for key, parameter in snapshot(learner.pair).items())


def test_nll_needs_no_rewards_no_values_and_no_reference(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], NLL())
    metrics = learner.update([unscored(unasked(one)) for one in single_turns(4)])
    assert metrics["loss/policy"] > 0 and metrics["tokens/trained"] > 0


# Learning


@pytest.mark.parametrize("name", sorted(set(FROM_DATA) - {"nll"}))
def test_the_better_response_becomes_likelier(models: dict[str, Path], name: str) -> None:
    algorithm = algorithm_of(name, learning_rate=3e-3)
    learner = make_learner(models["llama"], algorithm, iterations=100)
    good, bad = (7,), (11,)
    pairs = [rollout(i, (3, 4), good if i % 2 == 0 else bad, 1.0 - i % 2) for i in range(8)]
    data = [replace(one, baseline=0.5, group=i // 2) for i, one in enumerate(scored(learner.pair, pairs))]

    def advantage_of_good() -> float:
        with torch.no_grad():
            both = [float(plain_logprobs(learner.pair.lm, pairs[i])[0]) for i in (0, 1)]
        return both[0] - both[1]

    before = advantage_of_good()
    for _ in range(25):
        learner.update(data)
    assert advantage_of_good() > before + 1.0
