"""Numbers of the user's own about an iteration's rollouts: logged, and refused with the reason."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.settings import build
from services.config.compose import run_settings
from services.config.measures import Measures
from services.config.settings import RunSettings
from tests.fakes import rollout_of
from tests.services.training.loop.test_controller import Loop

PAGE = (Path(__file__).parents[3] / "docs/extending.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n# my_measure\.py\n(.*?)```", PAGE, re.DOTALL)


class Counted:
    """How many rollouts there were, in all so far."""

    def __init__(self, start: int = 0) -> None:
        self.seen = start

    def measure(self, rollouts: Sequence[Rollout]) -> Mapping[str, float]:
        self.seen += len(rollouts)
        return {"mine/seen": self.seen}


class Given:
    """Returns what a test says."""

    answer: Any = None

    def measure(self, rollouts: Sequence[Rollout]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class NoMeasure:
    def score(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [0.0]


HERE = __name__


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    return lambda answer: monkeypatch.setattr(Given, "answer", answer)


@pytest.fixture(autouse=True)
def _python_keeps_its_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)


@pytest.fixture
def my_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_measure.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_measure:Episodes"
    sys.modules.pop("my_measure", None)


def rollouts(count: int) -> list[Rollout]:
    prompt = Prompt("p", "a b")
    return [rollout_of(Lease(i, prompt, (1, 2), i, 0, Sampling(4))) for i in range(count)]


def test_what_a_measure_says_is_logged_with_the_runs_own_numbers(tmp_path: Path) -> None:
    """Two rollouts an iteration, counted from five on: 7, 9, 11, 13."""
    loop = Loop(tmp_path, measures=[{"name": f"{HERE}:Counted", "start": 5}]).run()
    rows = loop.folder.rollout_info()
    assert [row["mine/seen"] for row in rows] == [7.0, 9.0, 11.0, 13.0]
    assert all("reward/mean" in row for row in rows)


def test_the_example_of_the_documentation_measures(my_measure: str) -> None:
    """Rewards 1 and 4, then 7, of the last two: medians 2.5 and 5.5."""
    measures = Measures({"name": my_measure, "last": 2})
    one, four, seven = (with_reward(rollout, r) for rollout, r in zip(rollouts(3), (1, 4, 7), strict=True))
    first, second = measures([one, four]), measures([seven])
    assert first == {"episodes/median": 2.5, "episodes/best": 4.0, "episodes/intent_3": 1.0}
    assert second == {"episodes/median": 5.5, "episodes/best": 7.0, "episodes/intent_3": 1.0}


def with_reward(rollout: Rollout, reward: float) -> Rollout:
    from dataclasses import replace

    prompt = replace(rollout.prompt, meta={"intent": 3})
    return replace(rollout, prompt=prompt, turns=(replace(rollout.turns[0], reward=float(reward)),))


def test_a_run_remembers_what_it_was_told(tmp_path: Path) -> None:
    entries = [{"name": f"{HERE}:Counted", "start": 5}, {"name": f"{HERE}:Given"}]
    run = run_settings(
        ["model.path=none", f"measures=[{{name: '{HERE}:Counted', start: 5}}, '{HERE}:Given']"]
    )
    assert run.resolved()["measures"] == entries
    assert build(RunSettings, run.resolved(), where="").resolved()["measures"] == entries
    assert run_settings(["model.path=none"]).resolved()["measures"] == []


@pytest.mark.parametrize("measure", [f"{HERE}:Counted", {"name": f"{HERE}:Counted"}, [f"{HERE}:Counted"]])
def test_one_needs_no_list(measure: Any) -> None:
    assert Measures(measure)(rollouts(3)) == {"mine/seen": 3.0}


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("counted", r"measures: got {'name': 'counted'}; expected package.module:Class"),
        (3, r"measures: got 3; expected"),
        (f"{HERE}:Counter", r"no class Counter; did you mean 'Counted'"),
        ("no_such_module:Class", r"importing no_such_module failed: ModuleNotFoundError"),
        (f"{HERE}:NoMeasure", r"NoMeasure is no measure: it lacks measure\(rollouts\)"),
        ({"name": f"{HERE}:Counted", "stat": 1}, r"Counted\(stat=1\) raised TypeError"),
    ],
)
def test_what_is_no_measure_is_refused_before_a_run(measure: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Measures(measure)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ValueError("no text"), r"measure\(\) raised ValueError: no text"),
        ([1.0], r"returned \[1.0\]; expected a mapping of names to numbers"),
        (None, r"returned None; expected a mapping"),
        ({"mine/share": float("nan")}, r"mine/share is nan; expected a finite number"),
        ({"mine/share": float("inf")}, r"mine/share is inf; expected a finite number"),
        ({"mine/share": "0.5"}, r"mine/share is '0.5'; expected a finite number"),
        ({"mine/share": None}, r"mine/share is None; expected a finite number"),
        ({"mine (share)": 0.5}, r"got 'mine \(share\)' for a number's name; .*such as 'mine _share_'"),
        ({"/mine": 0.5}, r"got '/mine' for a number's name; .*such as 'mine'"),
        ({"": 0.5}, r"got '' for a number's name"),
        ({1: 0.5}, r"got 1 for a number's name"),
        ({"reward/mean": 0.5}, r"'reward/mean' is logged already; expected another name"),
    ],
)
def test_what_can_not_be_logged_is_refused_with_the_class_that_said_it(
    answer: Any, message: str, answers: Callable[[Any], None]
) -> None:
    answers(answer)
    with pytest.raises(InputError, match=rf"measure={HERE}:Given: .*{message}"):
        Measures(f"{HERE}:Given")(rollouts(2), taken=("reward/mean",))


def test_two_measures_do_not_overwrite_each_other(answers: Callable[[Any], None]) -> None:
    answers({"mine/seen": 1})
    with pytest.raises(InputError, match=rf"measure={HERE}:Given: 'mine/seen' is logged already"):
        Measures([f"{HERE}:Counted", f"{HERE}:Given"])(rollouts(2))


def test_numbers_of_other_kinds_are_numbers(answers: Callable[[Any], None]) -> None:
    import numpy

    answers({"a": numpy.float32(0.5), "b": True, "c": 3})
    values = Measures(f"{HERE}:Given")([])
    assert values == {"a": 0.5, "b": 1.0, "c": 3.0}
    assert {type(value) for value in values.values()} == {float}


def test_the_runs_own_names_are_taken(tmp_path: Path, answers: Callable[[Any], None]) -> None:
    answers({"reward/mean": 1.0})
    with pytest.raises(InputError, match="'reward/mean' is logged already"):
        Loop(tmp_path, measures=[f"{HERE}:Given"]).run()
