"""The journal: a line that shows a pathology is followed by a warning, on the console and once."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console as Terminal

from services.runs.diagnosis.reading import history_of
from services.runs.diagnosis.watch import Watch
from services.runs.folder import RunFolder
from services.runs.stopping.stopping import StoppedBy, Stopping
from services.runs.tracking.console import Console
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.tracker import Tracker
from services.training.loop.evaluations.evaluation import Evaluation
from services.training.loop.journal import Journal


def journal(folder: RunFolder) -> tuple[Journal, io.StringIO]:
    out = io.StringIO()
    tracker = Tracker.start(TrackingSettings(enabled=False), str(folder.path), "run")
    return Journal(folder, tracker, Console(Terminal(file=out)), Watch.of(history_of(folder))), out


def test_a_pathology_is_warned_of_once_and_not_again_after_a_resume(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path), "run", {"rollout": {"max_tokens": 8}}, resume="auto")
    first, out = journal(folder)
    for number in range(1, 9):
        first.iteration(number, {"finish/stop": 0.1}, {"entropy": 2.0})

    warning = "warning: Responses cut off: 90% of the responses are cut off at rollout.max_tokens=8. Try: "
    assert out.getvalue().count(warning + "rollout.max_tokens=16") == 1
    lines = out.getvalue().splitlines()
    assert next(i for i, line in enumerate(lines) if warning in line) == 5  # after the fifth iteration's line

    resumed, out = journal(folder)
    resumed.iteration(9, {"finish/stop": 0.1}, {"entropy": 2.0})
    assert "warning" not in out.getvalue()


def test_validation_is_watched_and_the_test_is_not(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path), "run", {}, resume="auto")
    kept, _ = journal(folder)
    kept.evaluation(0, "validation", Evaluation({"reward/mean": 0.5}, []))
    kept.evaluation(0, "test", Evaluation({"reward/mean": 0.9}, []))

    assert kept.watch.evaluations == [{"epoch": 0, "metrics": {"reward/mean": 0.5}}]


def test_a_diagnosis_stops_the_run_also_after_a_resume(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path), "run", {"rollout": {"max_tokens": 8}}, resume="auto")
    by = []
    for number in range(1, 7):  # with a new start each time
        kept = replace(journal(folder)[0], stopping=Stopping(["diagnosis:responses_cut"]))
        kept.resume()
        kept.iteration(number, {"finish/stop": 0.1}, {"entropy": 2.0})
        by.append(kept.stopped_by())

    message = "90% of the responses are cut off at rollout.max_tokens=8"
    assert by[:4] == [None] * 4
    assert by[4:] == [StoppedBy("diagnosis:responses_cut", number, message) for number in (5, 6)]
