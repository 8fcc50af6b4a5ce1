"""Engine and learner in different precision: weights and masks by hand, by default, and in an update."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from contracts.rollout import Rollout, Sampling
from learner.algorithms.grpo import GRPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rloo import RLOO
from learner.batches.batching import collate
from learner.learner import Learner
from learner.mismatch_settings import MismatchSettings
from learner.off_policy import Correction, correction_of
from learner.optimization.kl_control import KLSettings
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.tiny import SMOOTH, perturb, plain_logprobs, random_rollouts, snapshot, without_times

# Two responses of three and two tokens, as π_old/μ
RATIOS_N = torch.tensor([1.0, 4.0, 0.25, 2.0, 2.0])
RESPONSES_N = torch.tensor([0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("level", "masks", "tokens", "responses"),
    [
        ("token", {}, [1, 3, 0.25, 2, 2], [1, 3]),
        ("response", {}, [1, 1, 1, 3, 3], [1, 3]),
        (None, {"mask_above": 3.0}, [1, 0, 1, 1, 1], [1, 1]),
        ("token", {"mask_below": 0.5, "mask_above": 5.0}, [1, 3, 0, 2, 2], [1, 3]),
        # The geometric means are 1 and 2.
        ("token", {"mask_responses_beyond": 1.9}, [1, 3, 0.25, 0, 0], [1, 0]),
        ("token", {"mask_responses_beyond": 2.1}, [1, 3, 0.25, 2, 2], [1, 3]),
        ("response", {"mask_responses_beyond": 1.9, "mask_above": 3.0}, [1, 0, 1, 0, 0], [1, 0]),
    ],
)
def test_weights_and_masks_by_hand(
    level: Any, masks: dict[str, float], tokens: list[float], responses: list[float]
) -> None:
    correction = Correction(level, MismatchSettings(**masks))
    weights_N, weights_B = correction.weights(RATIOS_N.log(), RESPONSES_N, cap=3.0)
    assert weights_N.tolist() == pytest.approx(tokens, rel=1e-5)
    assert weights_B.tolist() == pytest.approx(responses, rel=1e-5)


def test_a_response_is_masked_for_improbable_tokens_too() -> None:
    correction = Correction("token", MismatchSettings(mask_responses_beyond=1.9))
    _kept_N, kept_B = correction.kept(-RATIOS_N.log(), RESPONSES_N)
    assert kept_B.tolist() == [True, False]


def test_a_mean_ratio_has_a_mean_weight_however_long_the_response() -> None:
    drifts_N = torch.full((4000,), -1e-3)
    responses_N = torch.zeros(4000, dtype=torch.long)
    (product,) = Correction("token").weights(drifts_N, responses_N, 2.0)[1].tolist()
    (mean,) = Correction("token").weights(drifts_N, responses_N, 2.0, by_mean=True)[1].tolist()
    assert product == pytest.approx(math.exp(-4), rel=1e-3) and mean == pytest.approx(math.exp(-1e-3))


def test_masks_without_weights_are_refused() -> None:
    with pytest.raises(ValidationError, match="weights=none with a mask"):
        MismatchSettings(weights="none", mask_above=5.0)


@pytest.mark.parametrize(
    ("settings", "version", "differs", "level"),
    [
        ({}, 0, False, None),
        ({}, 0, True, "token"),
        ({"mismatch": MismatchSettings(weights="none")}, 0, True, None),
        ({"mismatch": MismatchSettings(weights="response")}, 0, False, "response"),
        ({}, 1, False, "token"),  # older weights drew the rollouts
        ({"staleness_correction": "response"}, 1, True, "response"),
        ({"staleness_correction": "none"}, 1, True, None),
        ({"behavior": "importance"}, 0, False, "token"),
    ],
)
def test_which_correction_applies(
    settings: dict[str, Any], version: int, differs: bool, level: str | None
) -> None:
    correction = correction_of(
        LearnerSettings(**settings), collate(random_rollouts(2)), version=version, rounds=differs
    )
    assert (correction and correction.level) == level


def learner_of(path: Path, algorithm: Any = None, *, engine_rounds: bool = True, **settings: Any) -> Learner:
    return Learner(
        ModelSettings(path=str(path), dropout=False),
        algorithm or GRPO(learning_rate=1e-3, optimizer=SMOOTH),
        LearnerSettings(**{"device": "cpu", **settings}),
        seed=0,
        iterations=4,
        sampling=Sampling(max_tokens=2**31, temperature=1.0),
        engine_rounds=engine_rounds,
    )


@pytest.mark.parametrize(
    ("engine_rounds", "settings", "algorithm", "expected"),
    [
        (False, {}, PPO(), False),
        (True, {}, PPO(), True),
        (False, {"autocast": "bfloat16"}, PPO(), True),
        (True, {"behavior": "ignore"}, PPO(), False),  # asked for: the whole softmax, without weights
        (True, {}, NLPO(compatibility="rl4lms"), False),
    ],
)
def test_only_rounding_is_corrected_by_default(
    models: dict[str, Path], engine_rounds: bool, settings: dict[str, Any], algorithm: Any, expected: bool
) -> None:
    learner = learner_of(models["llama"], algorithm, engine_rounds=engine_rounds, **settings)
    assert learner._rounds is expected


def drawn(learner: Learner, drift: float = 0.2) -> list[Rollout]:
    """Rollouts in groups of four whose engine's log-probabilities are up to `drift` nats off."""
    generator = torch.Generator().manual_seed(7)
    rollouts = []
    for number, one in enumerate(random_rollouts(12)):
        with torch.no_grad():
            own_N = plain_logprobs(learner.pair.lm, one)
        off_N = own_N - drift * (2 * torch.rand(own_N.shape, generator=generator) - 1)
        turns, at = [], 0
        for turn in one.turns:
            part = tuple(off_N[at : at + len(turn.tokens)].clamp(max=0).tolist())
            turns.append(replace(turn, behavior_logprobs=part))
            at += len(turn.tokens)
        rollouts.append(replace(one, turns=tuple(turns), group=number // 4))
    return rollouts


@pytest.mark.parametrize("algorithm", [GRPO, RLOO])
def test_the_updates_own_pass_gives_the_weights(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, algorithm: Any
) -> None:
    """Equal to an update that scores first: the weights need no pass of their own."""
    chosen = algorithm(learning_rate=1e-3, optimizer=SMOOTH)
    updates = []
    for by_update in (True, False):
        learner = learner_of(models["llama"], chosen, mismatch=MismatchSettings(mask_above=1.15))
        if not by_update:
            monkeypatch.setattr("learner.passes.scorer.scores_come_with_the_update", lambda *_, **__: False)
        metrics = without_times(learner.update(drawn(learner)))
        updates.append((snapshot(learner.pair), metrics))
    torch.testing.assert_close(updates[0][0], updates[1][0], atol=1e-5, rtol=1e-5)
    assert updates[0][1] == pytest.approx(updates[1][1], abs=1e-4, rel=1e-3)
    assert 0.05 < updates[0][1]["mismatch/masked"] < 0.3


def test_what_is_masked_teaches_nothing(models: dict[str, Path]) -> None:
    """With every token beyond the bound the weights stay, to the bit; without a bound they move."""
    moved = {}
    for name, mismatch in (("all", MismatchSettings(mask_above=1.1)), ("none", MismatchSettings())):
        algorithm = GRPO(learning_rate=1e-2, kl=KLSettings(placement="loss", coefficient=0.0))
        learner = learner_of(models["llama"], algorithm, mismatch=mismatch)
        perturb(learner.pair.lm)
        before = snapshot(learner.pair)
        rollouts = [
            replace(
                one,
                turns=tuple(
                    replace(turn, behavior_logprobs=tuple(logprob - 1 for logprob in turn.behavior_logprobs))
                    for turn in one.turns
                ),
            )
            for one in drawn(learner, drift=0.0)
        ]
        metrics = learner.update(rollouts)
        assert metrics.get("mismatch/masked", 0.0) == (1.0 if name == "all" else 0.0)
        assert metrics["mismatch/max_ratio"] == pytest.approx(math.e, rel=1e-3)
        after = snapshot(learner.pair)
        moved[name] = max(float((after[key] - before[key]).abs().max()) for key in before)
    assert moved["all"] == 0 and moved["none"] > 0


def test_in_float32_nothing_changes_to_the_bit(models: dict[str, Path]) -> None:
    updates = []
    for mismatch in (MismatchSettings(), MismatchSettings(weights="none")):
        learner = learner_of(models["llama"], PPO(), engine_rounds=False, mismatch=mismatch)
        metrics = without_times(learner.update(drawn(learner)))
        updates.append((snapshot(learner.pair), metrics))
    assert updates[0][1] == updates[1][1]
    assert all(torch.equal(updates[0][0][key], updates[1][0][key]) for key in updates[0][0])
