"""`whetstone.score` takes each kind of grader that its docstring names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import whetstone
from contracts.scores import MetricValue, Sample

TEXTS = ["a b", "c"]


class Longest:
    """A metric of a user's own."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"longest": MetricValue(float(max(len(sample.text) for sample in samples)))}


def local(kind: type) -> Any:
    """Return an object of a class that no other process can import."""
    return type("Local", (kind,), {})()


def test_an_object_may_compute() -> None:
    assert whetstone.score(local(Longest), TEXTS).metrics == {"longest": 3.0}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls go to another process, as after an import of Ray."""
    monkeypatch.setattr("whetstone.grading.why_not_here", lambda: "Ray was imported here before")


@pytest.mark.usefixtures("apart")
def test_another_process_finds_the_users_modules_for_an_object() -> None:
    assert whetstone.score(local(Longest), TEXTS).metrics == {"longest": 3.0}


@pytest.mark.usefixtures("apart")
def test_a_file_imports_what_lies_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words_of_mine.py").write_text("def number(text): return float(len(text.split()))\n")
    (tmp_path / "mine.py").write_text(
        "from words_of_mine import number\ndef own(samples): return [number(s.text) for s in samples]\n"
    )
    assert whetstone.score("mine.py:own", TEXTS).metrics == {"own": 1.5}


def test_two_lambdas_are_told_apart_as_in_training() -> None:
    both = [lambda samples: [1.0 for _ in samples], lambda samples: [2.0 for _ in samples]]
    assert whetstone.score(both, TEXTS).metrics == {"lambda": 1.0, "lambda2": 2.0}


@pytest.mark.parametrize("graders", [{len: 0.5}, {"rouge": 0.5}, ["rouge", {"weight": 2.0}]])
def test_weights_are_refused(graders: Any) -> None:
    with pytest.raises(whetstone.InputError, match=r"^graders: got .*weight.*"):
        whetstone.score(graders, TEXTS)


def test_what_is_no_grader_is_refused() -> None:
    with pytest.raises(whetstone.InputError, match=r"^graders: got 3; expected .* a method score or compute"):
        whetstone.score(3, TEXTS)


def exclaimed(text: str) -> str:
    return f"{text}!"


class Lengths:
    """A reward whose options hold functions."""

    def __init__(self, key: Any, more: Sequence[Any] = (), place: str = "") -> None:
        self.calls, self.place = [key, *more], place

    def score(self, samples: Sequence[Sample]) -> list[float]:
        assert self.place == "tests.module:name"
        texts = [sample.text for sample in samples]
        for call in self.calls:
            texts = [call(text) for text in texts]
        return [float(len(text)) for text in texts]


def test_functions_among_the_options_of_a_class_arrive_as_functions() -> None:
    options = {"key": lambda text: text * 2, "more": [exclaimed], "place": "tests.module:name"}
    for kind in (Lengths, type("Local", (Lengths,), {})):
        scored = whetstone.score({"name": kind, **options}, TEXTS)
        assert list(scored.samples[kind.__name__]) == [7.0, 3.0]


def test_functions_among_the_options_of_a_function_arrive_as_functions() -> None:
    def lengths(samples: Sequence[Sample], key: Any = None) -> list[float]:
        return [float(len(key(sample.text))) for sample in samples]

    assert whetstone.score({"name": lengths, "key": exclaimed}, TEXTS).metrics == {"lengths": 3.0}
