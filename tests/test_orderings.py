"""Registered orderings: their tests by hand and beside scipy's, what they refuse, and their page."""

import math
import re
import subprocess
from pathlib import Path
from statistics import fmean

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.orderings import registry as registered
from benchmarks.orderings.arms import HERE
from benchmarks.orderings.claims import hedges_g, judged
from benchmarks.orderings.page import FILE, page
from benchmarks.orderings.registry import Arm, Claim, Ordering, Registry, read_registry
from contracts.errors import InputError
from contracts.settings import build
from services.config.compose import run_settings

ABOVE = Claim(above=("a", "b"), measure="test")
LEVEL = Claim(level=("a", "b"), measure="test", margin=0.05)
eight = st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8).filter(
    lambda rewards: max(rewards) - min(rewards) > 1e-3
)


def test_a_claim_is_judged_by_its_interval() -> None:
    high, low = [0.9, 1.0, 1.1], [0.4, 0.5, 0.6]
    assert judged(ABOVE, high, low, 1).verdict == "as registered"
    assert judged(ABOVE, low, high, 1).verdict == "not as registered"
    # Half the interval's width is 2.776 · √(2 · 0.01 / 3) = 0.227, and 0.375 with a fifth of 5 %.
    assert judged(ABOVE, [1.2, 1.3, 1.4], high, 1).verdict == "as registered"
    assert judged(ABOVE, [1.2, 1.3, 1.4], high, 5).verdict == "undecided"


def test_a_run_before_its_registration_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    monkeypatch.setattr(registered, "FILE", tmp_path / "registered.yaml")
    git("init", "-q")
    commits = []
    for message in ("before", "registered", "after"):
        git("commit", "-q", "--allow-empty", "-m", message)
        commits.append(git("rev-parse", "--short", "HEAD"))
    before, registration, after = commits
    registered.require_registered_before(registration, registration)
    registered.require_registered_before(f"{after}-dirty", registration)
    with pytest.raises(InputError, match="no later than its registration"):
        registered.require_registered_before(before, registration)


def test_level_is_within_the_margin_and_not_merely_without_a_clear_difference() -> None:
    assert judged(LEVEL, [0.50, 0.51, 0.52], [0.50, 0.51, 0.52], 1).verdict == "as registered"
    assert judged(LEVEL, [0.2, 0.5, 0.8], [0.2, 0.5, 0.8], 1).verdict == "undecided"
    assert judged(LEVEL, [0.70, 0.71, 0.72], [0.50, 0.51, 0.52], 1).verdict == "not as registered"


@settings(deadline=None)
@given(eight, eight, st.integers(1, 8))
def test_the_test_is_welchs(first: list[float], second: list[float], num_claims: int) -> None:
    oracle = scipy.stats.ttest_ind(first, second, equal_var=False)
    claim = judged(ABOVE, first, second, num_claims)
    if abs(oracle.pvalue - 0.05 / num_claims) < 1e-9:
        return
    clear = "as registered" if fmean(first) > fmean(second) else "not as registered"
    assert claim.verdict == (clear if oracle.pvalue < 0.05 / num_claims else "undecided")
    low, high = oracle.confidence_interval(1 - 0.05 / num_claims)
    assert (claim.difference - claim.half_width, claim.difference + claim.half_width) == pytest.approx(
        (low, high)
    )


@settings(deadline=None)
@given(eight, eight)
def test_an_effect_changes_its_sign_with_the_arms_and_nothing_with_the_scale(
    first: list[float], second: list[float]
) -> None:
    effect = hedges_g(first, second)
    assert effect is not None
    assert hedges_g(second, first) == pytest.approx(-effect)
    scaled = hedges_g([7 * value - 3 for value in first], [7 * value - 3 for value in second])
    assert scaled == pytest.approx(effect, abs=1e-9)


def test_arms_without_any_spread_have_no_effect_size() -> None:
    assert hedges_g([0.5, 0.5], [0.4, 0.4]) is None
    assert not math.isnan(judged(ABOVE, [0.5, 0.5], [0.4, 0.4], 1).half_width)


def test_what_is_registered_can_be_run() -> None:
    registry = read_registry()
    assert len(registry.seeds) == 8
    for name in ("nlpo", "kl", "asynchronous"):
        arm = list(registry.orderings[name].arms.values())[-1]
        run_settings([*registry.shared, *arm.train, *HERE, "model.path=somewhere"])
    starts = [
        ordering.arms
        for ordering in registry.orderings.values()
        if any(arm.train for arm in ordering.arms.values())
    ]
    plain = {next(iter(arms.values())).digest for arms in starts if next(iter(arms)) != "no penalty"}
    assert len(plain) == 1  # PPO's runs are made once, and shared


def test_a_wrong_registration_is_refused() -> None:
    for claim, message in (
        ({"above": ["a", "b"], "level": ["a", "b"], "measure": "test"}, "expected above"),
        ({"level": ["a", "b"], "measure": "test"}, "with a margin"),
        ({"above": ["a", "c"], "measure": "test"}, "c is no arm"),
    ):
        arms = {"a": {"offline": "nll"}, "b": {"train": ["algorithm=ppo"]}}
        with pytest.raises(InputError, match=re.escape(message)):
            build(Ordering, {"asks": "?", "known": "", "arms": arms, "claims": [claim]}, where="x")
    with pytest.raises(InputError, match="one of them"):
        build(Arm, {"offline": "nll", "games": "ppo"}, where="x")


def test_nothing_runs_by_a_registration_that_is_not_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = tmp_path / "registered.yaml"
    changed.write_text("new")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(registered, "FILE", changed)
    with pytest.raises(InputError, match="commit it, so that it is registered"):
        registered.registration()


def test_the_page_tells_what_was_not_run_and_judges_no_part_of_the_seeds() -> None:
    arms = {"a": Arm(offline="nll"), "b": Arm(offline="wbc")}
    ordering = Ordering(asks="Which?", known="nothing", arms=arms, claims=[ABOVE])
    registry = Registry(seeds=(1, 2), shared=(), orderings={"one": ordering, "two": ordering})

    def run(value: float) -> dict[str, object]:
        return {"measures": {"test": value}, "seconds": 3.0, "commit": "abc1234"}

    values = {"one": {"a": [run(0.8), run(0.9)], "b": [run(0.1), run(0.2)]}, "two": {"a": [], "b": []}}
    text = page(registry, values, "def5678")
    assert "commit def5678" in text and "abc1234" in text
    one, two = text.split("## Which?")[1:]
    # √(2 · 0.005 / 2) = 0.0707, and Student's quantile of two degrees of freedom is 4.303.
    assert "| a above b | test | +0.700 | +0.396 to +1.004 | +5.7 | as registered |" in one
    assert "| a | 0.850 ± 0.635 | 2 of 2 | 3 |" in one  # 12.706 · 0.0707 / √2
    assert "**Not run.**" in two and "a above b, by `test`: not run" in two
    values["one"]["b"] = [run(0.1)]
    assert "| a above b | test | – | – | – | not run |" in page(registry, values, "def5678")


@pytest.mark.skipif(not FILE.exists(), reason="no page was written yet")
def test_the_page_has_every_registered_claim() -> None:
    text = FILE.read_text(encoding="utf-8")
    for ordering in read_registry().orderings.values():
        assert ordering.asks in text
        assert all(claim.text in text for claim in ordering.claims)
