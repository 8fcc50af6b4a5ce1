"""Responses of a data set beside the policy's own: weights and traces by hand, and that the gradient is the
policy's own objective's.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.rollout import Rollout, Sampling
from learner.algorithms.a2c import A2C
from learner.algorithms.base import Algorithm
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rloo import RLOO
from learner.batches.batching import collate
from learner.functional.advantages import generalized_advantages
from learner.off_policy import Correction, ImportanceLevel, importance, metrics, traces
from learner.optimization.kl_control import KLSettings
from learner.passes.scoring import ScoredBatch
from tests.learner.tiny import make_learner, make_model, plain_logits, rollout, whole

WORDS = 6
NO_KL = KLSettings(placement="loss", coefficient=0.0)


def of_data(one: Rollout) -> Rollout:
    return replace(one, from_data=True)


# By hand


def scored_by_hand() -> tuple[list[Rollout], ScoredBatch]:
    """π_old is ½ everywhere; a response of its own, and two of data drawn with 1/8, ½ and with 1, 1."""
    log = math.log
    rollouts = [
        rollout(0, (3,), (4, 5), logprobs=[log(0.25), log(0.5)]),
        of_data(rollout(1, (3,), (4, 5), logprobs=[log(0.125), log(0.5)])),
        of_data(rollout(2, (3,), (4, 5), logprobs=[-1e-9, -1e-9])),
    ]
    half_BT = torch.full((3, 2), log(0.5))
    return rollouts, ScoredBatch(half_BT, half_BT, half_BT * 0, half_BT * 0)


@pytest.mark.parametrize(
    ("own_level", "by_token", "tokens", "responses"),
    [
        (None, True, [1, 1, 3, 1, 0.5, 0.5], [1, 3, 0.25]),
        (None, False, [1, 1, 3, 3, 0.25, 0.25], [1, 3, 0.25]),
        ("token", True, [2, 1, 3, 1, 0.5, 0.5], [2, 3, 0.25]),
        ("response", True, [2, 2, 3, 1, 0.5, 0.5], [2, 3, 0.25]),
    ],
)
def test_weights_by_hand(
    own_level: ImportanceLevel | None, by_token: bool, tokens: list[float], responses: list[float]
) -> None:
    rollouts, scored = scored_by_hand()
    batch = collate(rollouts)
    own_correction = None if own_level is None else Correction(own_level)
    pair = importance(batch, scored, whole(batch), cap=3.0, correction=own_correction, by_token=by_token)
    for weights, expected in zip(pair, (tokens, responses), strict=True):
        assert weights is not None and weights.tolist() == pytest.approx(expected, abs=1e-6)


def test_where_all_is_the_policys_own_nothing_is_weighed() -> None:
    rollouts, scored = scored_by_hand()
    batch = collate([replace(one, from_data=False) for one in rollouts])
    assert (
        batch.from_data_B is None
        and traces(batch, scored) is None
        and not metrics(batch, scored, cap=2.0, by_token=True)
    )
    assert importance(batch, scored, whole(batch), cap=2.0, correction=None, by_token=True) == (None, None)


def test_traces_and_what_is_told_by_hand() -> None:
    rollouts, scored = scored_by_hand()
    batch = collate(rollouts)
    traces_BT = traces(batch, scored)
    assert traces_BT is not None
    torch.testing.assert_close(traces_BT, torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.5, 0.5]]))
    measures = metrics(batch, scored, cap=3.0, by_token=True)
    assert measures["data/weight/mean"] == pytest.approx((3 + 1 + 0.5 + 0.5) / 4)
    assert measures["data/weight/truncated"] == 0.25
    assert metrics(batch, scored, cap=3.0, by_token=False)["data/weight/mean"] == pytest.approx(3.25 / 2)
    # ρ - 1 - ln ρ of ρ = 4, 1, ½, ½
    assert measures["data/kl"] == pytest.approx((3 - math.log(4) + 2 * (math.log(2) - 0.5)) / 4)


def test_advantages_with_traces_by_hand() -> None:
    # δ = (.25 - .5, 1 - .25); A_1 = .75, A_0 = -.25 + ½ · .2 · .75; returns V + c A
    rewards_BT, values_BT = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]])
    discounts = {"gamma": 1.0, "gae_lambda": 0.5}
    traces_BT = torch.tensor([[0.5, 0.2]])
    advantages_BT, returns_BT = generalized_advantages(
        rewards_BT, values_BT, torch.ones(1, 2), traces_BT=traces_BT, **discounts
    )
    assert advantages_BT[0].tolist() == pytest.approx([-0.175, 0.75])
    assert returns_BT[0].tolist() == pytest.approx([0.5 - 0.5 * 0.175, 0.25 + 0.2 * 0.75])
    plain = generalized_advantages(rewards_BT, values_BT, torch.ones(1, 2), **discounts)
    ones = generalized_advantages(
        rewards_BT, values_BT, torch.ones(1, 2), traces_BT=torch.ones(1, 2), **discounts
    )
    for left, right in zip(plain, ones, strict=True):
        torch.testing.assert_close(left, right)


# The gradient is that of what the policy itself would earn


def objective(lm: object, responses: Sequence[Rollout]) -> Tensor:
    """E_π[r] over all the responses there are."""
    expected = torch.zeros(())
    for one in responses:
        tokens = torch.tensor(one.turns[0].tokens)
        logprobs = plain_logits(lm, one).log_softmax(-1).gather(-1, tokens[:, None])
        expected = expected + one.total_reward * logprobs.sum().exp()
    return expected


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six words."""
    return make_model(tmp_path_factory.mktemp("six"), "llama", vocab_size=WORDS)


PLAIN: dict[str, Any] = {"kl": NO_KL, "max_grad_norm": None, "reward_scale": 1.0}


@pytest.mark.parametrize(
    ("algorithm", "length"),
    [
        (A2C(value_coef=0.0, normalize_values=False, **PLAIN), 1),
        (
            PPO(
                value_coef=0.0,
                advantage_whitening="none",
                num_epochs=1,
                minibatch_size=None,
                normalize_values=False,
                **PLAIN,
            ),
            1,
        ),
        (GRPO(scale_by_deviation=False, **PLAIN), 1),
        (GRPO(scale_by_deviation=False, aggregation="constant", **PLAIN), 2),
        (RLOO(**PLAIN), 2),
    ],
)
def test_data_drawn_evenly_give_the_policys_own_gradient(
    path: Path, algorithm: Algorithm, length: int
) -> None:
    """Every response that there is once, each equally likely under μ and more or less so under π."""
    answers = list(product(range(WORDS), repeat=length))
    logprobs = [-math.log(WORDS)] * length
    responses = [
        of_data(rollout(place, (3, 4), answer, math.sin(place), logprobs=logprobs))
        for place, answer in enumerate(answers)
    ]
    responses = [replace(one, group=0) for one in responses]
    learner = make_learner(path, algorithm, importance_cap=1e9, sampling=Sampling(max_tokens=length))
    learner.optimizer.step = lambda *_: None  # type: ignore[method-assign,assignment]
    learner.update(responses)
    named = {n: p for n, p in learner.pair.lm.named_parameters() if p.grad is not None}
    gradients = {name: parameter.grad.clone() for name, parameter in named.items()}
    # a mean over tokens or responses; `constant` divides by the longest response, RLOO's baseline is others'
    scale = {"GRPO": 1 / length, "RLOO": len(answers) / (len(answers) - 1)}.get(type(algorithm).__name__, 1.0)
    loss = -scale * objective(learner.pair.lm, responses)
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    assert largest > 1e-3
    for name, expected in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(gradients[name], expected, atol=1e-4 * largest, rtol=1e-3)


def test_data_count_less_where_the_policy_has_left_them_and_tell_nothing_of_its_own_kl(path: Path) -> None:
    """The policy's own figures are those of an update on its own rollouts alone."""
    drawn = [rollout(place, (3, 4), (place % WORDS, 2), 1.0, logprobs=[-1.5, -1.0]) for place in range(4)]
    others = [of_data(rollout(9, (3, 4), (1, 5), 0.0, logprobs=[-0.01, -0.01]))]
    alone = make_learner(path, PPO(num_epochs=1)).update(drawn)
    mixed = make_learner(path, PPO(num_epochs=1)).update([*drawn, *others])
    for key in ("kl/mean", "kl/sequence", "entropy", "mismatch/kl", "mismatch/max_ratio", "staleness/mean"):
        assert mixed[key] == pytest.approx(alone[key], abs=1e-6)
    assert mixed["data/weight/mean"] < 1 and "data/weight/mean" not in alone
    assert mixed["rollouts/trained"] == 5
