"""The rules: each finds its pathology in a synthetic curve, and all keep silent over a sound run."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.config.compose import run_settings
from services.runs.claim import flatten
from services.runs.diagnosis.diagnosis import diagnose
from services.runs.diagnosis.history import FEWEST, History
from services.runs.diagnosis.rules import RULES
from tests.services.runs.diagnosis.curves import SETTINGS, SOUND, Curve, run

FLAT: dict[str, Curve] = {"reward/mean": lambda i: 0.3}
# Characters as the reward, with a fixed scale: what its size does is no fault of the rate or the KL.
HUNDREDS: dict[str, Curve] = {
    "reward/mean": lambda i: 47 if i == 1 else 39,
    "reward/standard_error": lambda i: 1.4,
    "reward/std": lambda i: 8.0,
    "reward/min": lambda i: 20.0,
    "reward/max": lambda i: 90.0,
    "kl/mean": lambda i: min(5.0, i / 2),
}
# The pathology's curves, validation's rouge, and the rules that fire: its own first, others that must.
PATHOLOGIES: dict[str, tuple[dict[str, Curve], Curve | None, set[str]]] = {
    "KL grows without end": (
        {**FLAT, "kl/mean": lambda i: i**2 / 800},
        lambda i: 0.3,
        {"kl_runs_away"},
    ),
    "entropy falls to nothing": ({"entropy": lambda i: 2 * math.exp(-i / 10)}, None, {"entropy_collapses"}),
    "longer is better": (
        {"response_length/mean": lambda i: 90 + 3 * i, "reward/length_correlation": lambda i: 0.9},
        None,
        {"length_exploited"},
    ),
    "shorter is better": (
        {"response_length/mean": lambda i: 90 - i, "reward/length_correlation": lambda i: -0.8},
        None,
        {"length_exploited"},
    ),
    "repetition": ({"response_repetition/mean": lambda i: min(0.9, i / 80)}, None, {"repetition_exploited"}),
    "held-out falls": ({}, lambda i: 0.4 - abs(i - 30) / 150, {"held_out_falls"}),
    "constant groups": ({**FLAT, "groups/constant": lambda i: 0.95}, None, {"groups_without_variance"}),
    "one reward for all": (
        {
            **FLAT,
            "reward/std": lambda i: 0.0,
            "reward/min": lambda i: 0.3,
            "reward/max": lambda i: 0.3,
            "groups/constant": lambda i: None,
        },
        None,
        {"groups_without_variance"},
    ),
    "clipped": ({"clip_fraction": lambda i: 0.9}, None, {"clip_saturated"}),
    "a harmful critic": ({"explained_variance": lambda i: -0.8}, None, {"critic_explains_nothing"}),
    "a dead critic": ({"explained_variance": lambda i: 0.001}, None, {"critic_explains_nothing"}),
    "a critic of noise": (
        {**FLAT, "explained_variance": lambda i: 0.01},
        None,
        {"critic_explains_nothing"},
    ),
    "a sampler of its own": ({"mismatch/kl": lambda i: 0.2}, None, {"sampler_mismatch"}),
    "responses cut": ({"finish/stop": lambda i: 0.2}, None, {"responses_cut"}),
    "prompts cut": ({"prompts/cut": lambda i: 0.3}, None, {"prompts_cut"}),
    "stale": (
        {"staleness/mean": lambda i: 2.0, "staleness/max": lambda i: 4.0, "mismatch/kl": lambda i: 0.3},
        None,
        {"stale_tokens"},
    ),
    "nearly learned": (
        {"reward/mean": lambda i: 0.96, "groups/constant": lambda i: 0.9},
        lambda i: 0.9,
        {"rewards_at_ceiling"},
    ),
    "learned to the end": ({"reward/mean": lambda i: 1 - math.exp(-i / 5)}, None, {"rewards_at_ceiling"}),
    "a reward of 47": (HUNDREDS, lambda i: 0.3, {"reward_size"}),
    "steps too long": ({"approx_kl": lambda i: 3.0}, None, {"learning_rate_high"}),
    "ruined at once": (
        {
            "reward/mean": lambda i: 0.3 if i == 1 else 0.05,
            "kl/mean": lambda i: 0.0 if i == 1 else 1.5,
            "reward/std": lambda i: 0.3 if i == 1 else 0.01,  # what is ruined writes one text
        },
        lambda i: 0.3,
        {"learning_rate_high"},
    ),
    "nothing moves": (
        {"reward/mean": lambda i: 0.3, "kl/mean": lambda i: 1e-7, "approx_kl": lambda i: 1e-9},
        None,
        {"learning_rate_low"},
    ),
}


def names(history: History) -> set[str]:
    return {finding.rule.name for finding in diagnose(history).findings}


def test_the_remedy_of_a_reward_too_small_or_large_is_its_own_deviation() -> None:
    rewards = {key: curve for key, curve in HUNDREDS.items() if key.startswith("reward/")}
    small = HUNDREDS | {key: lambda i, curve=curve: curve(i) / 1000 for key, curve in rewards.items()}
    small["kl/mean"] = lambda i: 0.01
    history = run(small, lambda i: 0.3, noise=0.0)

    (finding,) = diagnose(history).findings

    assert finding.rule.name == "reward_size"
    # 8 / 1000 = 0.008, of which 125 makes 1
    assert finding.rule.remedy(history)[0] == "algorithm.reward_scale=deviation"
    assert finding.rule.remedy(history)[1].startswith("algorithm.reward_scale=125")


def test_a_reward_of_any_size_is_not_blamed_where_it_can_do_no_harm() -> None:
    scale, coefficient = "algorithm.reward_scale", "algorithm.value_coef"
    measured = SETTINGS | {scale: "deviation"}
    fitting = SETTINGS | {scale: 0.125}  # 8 · 0.125 = 1
    # GRPO has no critic, and compares within groups
    grpo = {k: v for k, v in SETTINGS.items() if k != coefficient} | {"algorithm.kl.placement": "loss"}

    for known in (measured, fitting, grpo):
        assert "reward_size" not in names(run(HUNDREDS, lambda i: 0.3, settings=known))


@pytest.mark.parametrize("name", PATHOLOGIES)
@given(seed=st.integers(0, 1000), noise=st.floats(0, 0.05))
@settings(max_examples=5, deadline=None)
def test_a_pathology_is_found_by_its_rule_and_by_no_other(name: str, seed: int, noise: float) -> None:
    curves, held_out, expected = PATHOLOGIES[name]

    assert names(run(curves, held_out, seed=seed, noise=noise)) == expected


@given(
    seed=st.integers(0, 10_000),
    noise=st.floats(0, 0.1),
    iterations=st.integers(1, 120),
    gain=st.floats(0.05, 0.7),
    pace=st.floats(5, 60),
    kl=st.floats(0.01, 1.8),
    entropy=st.floats(0.1, 3.0),
)
@settings(max_examples=60, deadline=None)
def test_a_sound_run_has_no_finding(
    seed: int, noise: float, iterations: int, gain: float, pace: float, kl: float, entropy: float
) -> None:
    sound: dict[str, Curve] = {
        "reward/mean": lambda i: 0.2 + gain * (1 - math.exp(-i / pace)),
        "kl/mean": lambda i: kl * (1 - math.exp(-i / pace)),
        "entropy": lambda i: entropy * (0.3 + 0.7 * math.exp(-i / pace)),
    }

    assert names(run(sound, seed=seed, noise=noise, iterations=iterations)) == set()


def test_every_pathology_is_a_rule_and_every_rule_has_a_pathology() -> None:
    assert {name for *_, fired in PATHOLOGIES.values() for name in fired} == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES) == 16


def test_texts_of_a_fixed_length_are_not_cut() -> None:
    fixed = {**SETTINGS, "rollout.min_tokens": 256}

    assert names(run({"finish/stop": lambda i: 0.0}, settings=fixed)) == set()
    endless = {**SETTINGS, "rollout.ignore_eos": True}
    assert names(run({"finish/stop": lambda i: 0.0}, settings=endless)) == set()
    assert names(run({"finish/stop": lambda i: 0.0}, settings={})) == {"responses_cut"}


def test_a_policy_that_has_settled_far_away_does_not_run_away() -> None:
    # KL is i/10, and 3 from the 30th iteration on. After iteration 39 the window's median is 3 and that of
    # the window before, 20 to 29, 2.45: a factor of 1.22. After iteration 40 it is 3 / 2.55 = 1.18.
    findings = diagnose(run({**FLAT, "kl/mean": lambda i: min(3.0, i / 10)}, noise=0.0)).findings

    assert [(finding.rule.name, finding.until) for finding in findings] == [("kl_runs_away", 39)]


def test_a_reward_pays_for_its_kl() -> None:
    # 0.025 an iteration, 0.25 from one window to the next: 25 standard errors.
    paid: dict[str, Curve] = {"kl/mean": lambda i: i**2 / 300, "reward/mean": lambda i: i / 40}

    assert names(run(paid, iterations=35)) == set()


def test_old_weights_are_no_mismatch() -> None:
    stale: dict[str, Curve] = {"staleness/mean": lambda i: 1.0, "mismatch/kl": lambda i: 0.05}

    assert names(run(stale)) == set()  # 0.05 is above the mismatch's 0.02, and below the stale 0.1


def test_a_metric_of_unknown_direction_does_not_count_as_held_out() -> None:
    history = run()
    for row in history.evaluations:
        row["metrics"]["fluency_metrics/perplexity"] = 50.0 - row["epoch"] / 2

    assert names(history) == set()


def test_undefined_numbers_are_left_out() -> None:
    history = run({"explained_variance": lambda i: None, "kl/mean": lambda i: math.nan})
    diagnosis = diagnose(history)

    assert diagnosis.findings == ()
    assert {rule.name for rule in diagnosis.blind} == {
        "critic_explains_nothing",
        "kl_runs_away",
        "learning_rate_low",
    }


def test_a_finding_says_since_when_until_when_and_what_to_type() -> None:
    # The median of ten values of 0.1 and 0.9 is 0.9 with six or more of 0.9, and 0.5 with five: above the
    # threshold of 0.8 in the windows that end with iterations 26 (21 to 26 are 0.9) to 44 (35 to 40 are).
    spell = run({"clip_fraction": lambda i: 0.9 if 20 < i <= 40 else 0.1}, noise=0.0)
    (finding,) = diagnose(spell).findings

    assert (finding.since, finding.until) == (26, 44)
    assert finding.remedy[:2] == ("algorithm.learning_rate=3e-06", "algorithm.num_epochs=2")
    assert finding.evidence.numbers == {"clip_fraction": 0.9}
    assert finding.evidence.said == "90% of the ratios are outside the clip range"


NUMBERS = st.none() | st.just(0.0) | st.floats() | st.floats(-1, 1)


@given(st.lists(st.fixed_dictionaries({key: NUMBERS for key in SOUND}), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_numbers_make_a_rule_fail(columns: list[dict[str, float | None]]) -> None:
    rows = [{"iteration": i, **row} for i, row in enumerate(columns, 1)]
    evaluations = [{"epoch": i, "metrics": row} for i, row in enumerate(columns)]

    diagnosis = diagnose(History(rows, evaluations, SETTINGS))

    assert all(1 <= finding.since <= finding.until <= len(rows) for finding in diagnosis.findings)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_nothing_about_few_iterations_or_missing_numbers(rule) -> None:
    few = History(run().rows[: FEWEST - 1])

    assert rule.find(few) is None
    assert rule.find(History([{"iteration": i} for i in range(1, 50)])) is None
    assert rule.find(History([])) is None
    assert rule.remedy(few) and all(isinstance(text, str) for text in rule.remedy(few))
    assert rule.reason and rule.title and rule.reads and rule.shows


TYPED = re.compile(r"\b(?:algorithm|rollout|learner|model)\.[a-z_.]+=[^\s,;]+")


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "grpo", "dapo", "gspo", "reinforce_pp"])
def test_what_a_remedy_says_to_type_can_be_typed(algorithm: str) -> None:
    overrides = ["model.path=gpt2", "task=increasing_numbers", f"algorithm={algorithm}"]
    known = flatten(run_settings(overrides).resolved())
    columns = ("reward/mean", "kl/mean", "entropy", "clip_fraction", "reward/std", "approx_kl", "finish/stop")
    of_groups = {"groups/constant": 0.9} if algorithm in ("grpo", "dapo", "gspo") else {}
    rows = [{"iteration": i, **dict.fromkeys(columns, 0.5), **of_groups} for i in range(1, 30)]
    seen = History(rows, (), known)
    for rule in RULES:
        for remedy in rule.remedy(seen) if rule.can_judge(seen) else ():
            for typed in TYPED.findall(remedy):
                run_settings([*overrides, typed])
