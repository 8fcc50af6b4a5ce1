"""Rules for every algorithm: no update depends on how a batch is laid out, the first pass has the ratio
one, and a rewarded token becomes likelier.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.components import find
from contracts.errors import LearnerError
from contracts.rollout import Rollout, Sampling
from contracts.token_sets import mask_set
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import (
    Algorithm,
    LossInputs,
    LossOutput,
    OptimizerSettings,
)
from learner.algorithms.classes import algorithm_class
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.seq2seq import single_turns
from tests.learner.tiny import make_learner, perturb, random_rollouts, rollout, snapshot

PROMPT = (3, 4)
GROUP = 4

# Those that learn from data are in test_learning_from_data.py, on data as they need it.
NOT_FROM_DATA = [name for name in ALGORITHMS if algorithm_class(name).traits.learns_from != "data"]
UNTAUGHT = [name for name in NOT_FROM_DATA if not algorithm_class(name).traits.teacher]
every = pytest.mark.parametrize("name", NOT_FROM_DATA)


def in_both_families(names: Sequence[str], quick: Sequence[str]) -> pytest.MarkDecorator:
    """Parameters (name, family): a T5 in float64 is slow, so those beside the quick ones are long tests."""
    t5 = [pytest.param(name, "t5", marks=[] if name in quick else pytest.mark.long) for name in names]
    return pytest.mark.parametrize(("name", "family"), [*((name, "llama") for name in names), *t5])


# TRPO's policy has no learning rate; a wide region lets it go far in few steps.
OWN_QUICK: dict[str, dict[str, Any]] = {
    "trpo": {"target_kl": 0.05, "num_epochs": 2, "cg_max_steps": 10},
    "a2c": {"optimizer": OptimizerSettings(name="rmsprop", eps=1e-5)},
    "nlpo": {"target_update_iterations": 2},
    "pass_at_k": {"pass_at": 1.0},
    "self_distillation": {"weight": 0.5},  # with 1, rewards teach nothing
}
# Options without which the groups of four below would teach nothing.
OWN: dict[str, dict[str, Any]] = {"pass_at_k": {"k": 2, "pass_at": 0.0}}
OWN_SMOOTH: dict[str, dict[str, Any]] = {
    "a2c": {"optimizer": OptimizerSettings(name="rmsprop", eps=1e-2)},
    # a direction that conjugate gradients have not settled on would show their rounding
    "trpo": {"cg_max_steps": 4, "cg_damping": 0.5, "num_epochs": 2},
}


def algorithm_of(name: str, **options: Any) -> Algorithm:
    kind = find("algorithm", name, ALGORITHMS)
    options = OWN.get(name, {}) | options
    known = {key: value for key, value in options.items() if key in kind.model_fields}  # type: ignore[attr-defined]
    return kind(**known)  # type: ignore[no-any-return]


def in_groups(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(one, group=i // GROUP) for i, one in enumerate(rollouts)]


# How a batch is laid out


def smooth(name: str) -> Algorithm:
    """Large steps, in which rounding is not blown up: AdamW divides small gradients by their own size."""
    options = {
        "learning_rate": 3e-3,
        "num_epochs": 1 if name == "a2c" else 3,
        "minibatch_size": None,
        "entropy_coef": 0.02,
        "optimizer": OptimizerSettings(eps=1e-3),
    }
    return algorithm_of(name, **options | OWN_SMOOTH.get(name, {}))


def trained(path: Path, algorithm: Algorithm, rollouts: Sequence[Rollout], **settings: Any) -> Learner:
    learner = make_learner(path, algorithm, sampling=Sampling(max_tokens=17), **settings)
    perturb(learner.pair)  # away from the reference and the mask, and values that are not 0
    learner.update(rollouts)
    return learner


@every
def test_neither_splitting_nor_padding_nor_order_changes_an_update(
    models: dict[str, Path], name: str
) -> None:
    algorithm, rollouts = smooth(name), in_groups(random_rollouts(12))
    fresh = make_learner(models["llama"], algorithm)
    perturb(fresh.pair)
    start = snapshot(fresh.pair)
    expected = snapshot(trained(models["llama"], algorithm, rollouts).pair)
    moved = max(float((expected[key] - start[key]).abs().max()) for key in start)
    assert moved > 1e-3
    # each rollout alone, so without any padding; a vocabulary in pieces; the last come first
    for laid_out in (
        trained(models["llama"], algorithm, rollouts, token_budget=1),
        trained(models["llama"], algorithm, rollouts[::-1], token_budget=45, logits_budget=100),
    ):
        for key, parameter in snapshot(laid_out.pair).items():
            torch.testing.assert_close(parameter, expected[key], atol=2e-5, rtol=1e-4)


# The first pass


def watched(algorithm: Algorithm, seen: list[LossInputs]) -> Algorithm:
    """The same algorithm, noting what its loss is handed."""
    kind = type(algorithm)

    def loss(self: Any, inputs: LossInputs) -> LossOutput:
        seen.append(inputs)
        return kind.loss(self, inputs)

    return type(kind.__name__, (kind,), {"loss": loss, "__module__": __name__})(**dict(algorithm))  # type: ignore


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("name", [name for name in NOT_FROM_DATA if algorithm_of(name).traits.online])
def test_on_the_first_pass_the_ratio_is_one(
    models: dict[str, Path], seq2seq: dict[str, Path], name: str, family: str
) -> None:
    """Training mode, other micro-batches and chunks than in scoring included."""
    seen: list[LossInputs] = []
    algorithm = watched(algorithm_of(name, num_epochs=1, cg_max_steps=1, line_search_max_iter=1), seen)
    learner = make_learner((models | seq2seq)[family], algorithm, logits_budget=200)
    perturb(learner.pair)
    learner.update(in_groups(single_turns(8)))
    ratio_N = (seen[0].logprobs_N - seen[0].old_logprobs_N).exp()
    torch.testing.assert_close(ratio_N, torch.ones_like(ratio_N), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen[0].values_N, seen[0].old_values_N, atol=1e-4, rtol=0)


# What must not reach the weights


@every
def test_a_reward_that_is_no_number_stops_before_the_weights(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models["gpt2"], algorithm_of(name))
    before = snapshot(learner.pair)
    rollouts = [*random_rollouts(7), rollout(9, (1,), (2,), float("nan"))]
    with pytest.raises(LearnerError, match=r"got nan for token|has the reward nan"):
        learner.update(in_groups(rollouts))
    assert all(torch.equal(before[key], parameter) for key, parameter in snapshot(learner.pair).items())


# Learning


def quick(name: str) -> Algorithm:
    options = {
        "learning_rate": 3e-3,
        "num_epochs": 4,
        "minibatch_size": None,
        "kl": KLSettings(coefficient=0),
    }
    if name == "rejection":
        options["kl"] = KLSettings(placement="loss", coefficient=0)
    if name == "a2c":
        del options["num_epochs"]
    if name == "supervised":
        del options["kl"]
    return algorithm_of(name, **options | OWN_QUICK.get(name, {}))


@torch.no_grad()
def logprobs_of(learner: Learner) -> torch.Tensor:
    """(V,) of the token after the prompt, as a worker would draw it: within the mask, if there is one."""
    logits_V = learner.pair.lm(torch.tensor([PROMPT])).logits[0, -1]
    if learner.algorithm.traits.masks:
        mask_V = learner.mask.lm(torch.tensor([PROMPT])).logits[0, -1]  # type: ignore[union-attr]
        allowed_1V = mask_set(mask_V[None], learner.algorithm.mask_rule())
        logits_V = logits_V.masked_fill(~allowed_1V[0], -torch.inf)
    return logits_V.log_softmax(-1)


def play(learner: Learner, num: int, token: int) -> list[Rollout]:
    """Answers of one token, reward 1 for `token`; an algorithm that needs references is shown it."""
    logprobs_V = logprobs_of(learner)
    drawn = logprobs_V.exp().multinomial(num, replacement=True).tolist()
    if not learner.algorithm.traits.online:
        drawn = [token] * num
    made = [
        rollout(i, PROMPT, (answer,), float(answer == token), logprobs=[float(logprobs_V[answer])])
        for i, answer in enumerate(drawn)
    ]
    return in_groups(made)


@pytest.mark.parametrize("name", UNTAUGHT)  # a teacher's pupil cares for no reward
def test_the_rewarded_token_becomes_likelier(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models["llama"], quick(name), iterations=100, sampling=Sampling(max_tokens=1))
    token = int(logprobs_of(learner).topk(3).indices[-1])  # within NLPO's mask, and not the likeliest
    before = float(logprobs_of(learner)[token].exp())
    assert before < 0.3
    for _ in range(60):
        metrics = learner.update(play(learner, 32, token))
        assert metrics.get("mismatch/max_ratio", 1.0) < 1 + 1e-4  # who samples and who learns agree
        if float(logprobs_of(learner)[token].exp()) > 0.8:
            break
    assert float(logprobs_of(learner)[token].exp()) > 0.8
