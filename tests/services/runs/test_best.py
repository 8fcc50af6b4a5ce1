"""The best checkpoint: its choice, its retention, and its model at the end."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError, LearnerLost
from contracts.scores import Score
from services.runs.best import Best, Criterion, best_of
from tests.fakes import FakeRewards, FakeWorkers
from tests.services.training.loop.test_controller import Loop

BEST = "val/reward/mean"


def rows(*values: float | None) -> list[dict[str, Any]]:
    return [{"epoch": n, "metrics": {"reward/mean": value}} for n, value in enumerate(values)]


def test_larger_or_smaller_is_better_and_the_first_of_equals() -> None:
    evaluations = rows(9.0, 0.1, 0.5, None, 0.5, 0.2)

    assert best_of(Criterion.of(BEST), evaluations) == Best(2, 0.5)
    assert best_of(Criterion.of(f"min:{BEST}"), evaluations) == Best(1, 0.1)
    assert best_of(Criterion.of(BEST), evaluations, among=[4, 5]) == Best(4, 0.5)
    assert best_of(Criterion.of(BEST), evaluations, among=[3]) is None
    assert best_of(Criterion.of("val/other"), evaluations) is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(allow_nan=True), min_size=1))
def test_none_is_better_than_the_best(values: list[float]) -> None:
    best = best_of(Criterion.of(BEST), rows(0.0, *values))
    finite = [value for value in values if abs(value) < float("inf")]
    assert (best.value if best else None) == max(finite, default=None)


@pytest.mark.parametrize(
    "text", ["reward/mean", "test/reward/mean", "largest:val/reward/mean", "val/", "min:"]
)
def test_only_metrics_of_the_validation_split_choose(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"keep_best.*such as val/reward/mean"):
        Loop(tmp_path, keep_best=text)


def test_a_metric_that_nobody_measures_ends_the_run_before_it_trains(tmp_path: Path) -> None:
    loop = Loop(tmp_path, keep_best="val/reward/men")

    with pytest.raises(
        InputError, match=r"no metric 'reward/men' in evaluations; did you mean 'reward/mean'"
    ):
        loop.run()
    assert loop.learner.trained == []


class ScoresVersions(FakeRewards):
    """Texts written with weights of version n have the n-th value."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.workers, self._values = FakeWorkers([]), values

    def _score(self, text: str) -> Score:
        return Score(self._values[self.workers.version])


def loop_with(folder: Path, *values: float, **options: Any) -> Loop:
    rewards = ScoresVersions(values)
    arguments = {"iterations": len(values) - 1, "keep_checkpoints": 1} | options
    loop = Loop(folder, rewards=rewards, **arguments)
    rewards.workers = loop.workers
    return loop


def version_of(model: Path) -> int:
    return int(json.loads((model / "version.json").read_text()))


@pytest.fixture(autouse=True)
def _exports_name_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fakes import FakeLearner

    def export(self: FakeLearner, folder: str) -> None:
        (Path(folder) / "version.json").write_text(json.dumps(self.version))

    monkeypatch.setattr(FakeLearner, "export", export)


def test_the_best_is_kept_beside_the_newest_and_both_are_exported(tmp_path: Path) -> None:
    loop = loop_with(
        tmp_path, 0.9, 0.2, 0.6, 0.7, 0.3, 0.4, 0.1, keep_best=BEST, evaluate_every=1, save_every=2
    ).run()

    assert list(loop.folder.checkpoints()) == [3, 6]  # 3 is no multiple of save_every
    assert json.loads(loop.folder.best_file.read_text()) == {
        "iteration": 3, "metric": BEST, "better": "max", "value": 0.7
    }  # fmt: skip
    assert version_of(loop.folder.model) == 6 and version_of(loop.folder.best_model) == 3


def test_the_newest_may_be_the_best(tmp_path: Path) -> None:
    loop = loop_with(tmp_path, 0.1, 0.2, 0.3, keep_best=BEST, evaluate_every=1).run()

    assert list(loop.folder.checkpoints()) == [2]
    assert version_of(loop.folder.best_model) == version_of(loop.folder.model) == 2
    assert not [name for name, _ in loop.calls if name == "load"]


def test_without_being_asked_for_there_is_no_best(tmp_path: Path) -> None:
    loop = loop_with(tmp_path, 0.1, 0.3, 0.2, evaluate_every=1).run()

    assert list(loop.folder.checkpoints()) == [2]
    assert not loop.folder.best_model.exists() and not loop.folder.best_file.exists()


def test_a_learner_lost_at_the_last_export_does_not_lose_the_best(tmp_path: Path) -> None:
    loop = loop_with(tmp_path, 0.1, 0.8, 0.2, keep_best=BEST, evaluate_every=1)
    load, fails = loop.learner.load, [LearnerLost("it died")]

    def dies_once(folder: str) -> None:
        if fails:
            raise fails.pop()
        load(folder)

    loop.learner.load = dies_once  # type: ignore[method-assign]
    loop.run()

    assert version_of(loop.folder.model) == 2 and version_of(loop.folder.best_model) == 1
    assert loop.learner.trained == [[0, 1], [2, 3]]


def test_a_later_start_may_ask_for_the_best_of_what_is_there(tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate_every": 1, "save_every": 1}
    first = loop_with(tmp_path, 0.1, 0.8, 0.2, **options | {"keep_best": None}).run()
    assert list(first.folder.checkpoints()) == [2]

    second = loop_with(tmp_path, 0.1, 0.8, 0.2, 0.1, **options | {"keep_best": BEST}).run()

    assert list(second.folder.checkpoints()) == [2, 3]  # 1 is gone: 2 is the best of those that are there
    assert version_of(second.folder.best_model) == 2


def test_a_damaged_best_is_set_aside_and_the_next_best_one_exported(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep_best": BEST, "evaluate_every": 1, "save_every": 1}
    loop = loop_with(tmp_path, 0.1, 0.8, 0.7, 0.2, **options | {"keep_checkpoints": 5})
    save = loop.learner.save

    def spoils(folder: str) -> None:
        save(folder)
        if loop.learner.version == 3:
            (loop.folder.checkpoint(1) / "learner.json").unlink()

    loop.learner.save = spoils  # type: ignore[method-assign]
    loop.run()

    assert version_of(loop.folder.best_model) == 2
    assert json.loads(loop.folder.best_file.read_text())["iteration"] == 2
    assert list(loop.folder.checkpoints()) == [2, 3]
    assert "checkpoints/1 is damaged: learner.json is missing" in " ".join(loop.screen.getvalue().split())
