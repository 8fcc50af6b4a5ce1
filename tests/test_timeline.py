"""`whetstone train --timeline`: a trace in which every process of a real run tells what it did."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.commands import train
from tests.models import make_tiny_model
from tests.runs import Run

ITERATIONS = 2
Spans = dict[str, list[dict[str, Any]]]  # of a process, by its name


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Spans:
    folder = tmp_path_factory.mktemp("timeline")
    model = make_tiny_model(folder / "model")
    lean = ("metrics=[]", "tracking.enabled=false", "rollout.engine=transformers", "learner.score_early=true")
    run = Run(folder, "traced", f"model.path={model}", f"iterations={ITERATIONS}", *lean, "--timeline")
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    events = json.loads(run.folder.timeline.read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    by_process: Spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_process[names[event["pid"]].partition(" (")[0]].append(event)
    return by_process


def names_of(spans: Spans, process: str) -> list[str]:
    return [span["name"] for span in sorted(spans[process], key=lambda span: span["ts"])]


@pytest.mark.ray
@pytest.mark.long
def test_every_process_is_in_the_trace(spans: Spans) -> None:
    assert set(spans) == {"whetstone train", "the learner", "worker 0", "reward increasing_numbers"}


@pytest.mark.ray
@pytest.mark.long
def test_the_trace_has_every_phase_of_a_run(spans: Spans) -> None:
    learner, worker = names_of(spans, "the learner"), names_of(spans, "worker 0")
    driver, reward = names_of(spans, "whetstone train"), names_of(spans, "reward increasing_numbers")
    assert learner[:2] == ["process starts", "loads models"]
    assert worker[:3] == ["process starts", "engine starts", "loads weights"]
    assert reward[:2] == ["process starts", "loads"]
    assert driver[0] == "process starts"
    for phase in ("trains", "scores", "updates"):
        assert learner.count(phase) == ITERATIONS
    assert learner.count("publish") == ITERATIONS + 1
    assert learner.count("scores early") >= ITERATIONS
    assert {"reference scores", "critic scores", "save", "export"} <= set(learner)
    assert worker.count("loads weights") == worker.count("checks weights") == ITERATIONS + 1
    assert worker.count("generates") >= ITERATIONS + 2  # evaluations, too
    assert reward.count("scores") >= ITERATIONS + 2
    for phase in ("waits for rollouts and rewards", "waits for the update", "pushes weights"):
        assert driver.count(phase) == ITERATIONS
    begun = ("starting Ray", "waits for the reward servers", "evaluates validation", "iteration 1")
    assert sorted(begun, key=driver.index) == list(begun)


@pytest.mark.ray
@pytest.mark.long
def test_the_processes_share_a_clock_and_their_spans_are_nested(spans: Spans) -> None:
    iterations = [span for span in spans["whetstone train"] if span["name"].startswith("iteration")]
    updates = [span for span in spans["the learner"] if span["name"] == "trains"]
    for iteration, update in zip(iterations, updates, strict=True):
        assert iteration["ts"] < update["ts"]
        assert update["ts"] + update["dur"] < iteration["ts"] + iteration["dur"]
    for of_process in spans.values():
        for lane in {span["tid"] for span in of_process}:
            assert_nested([span for span in of_process if span["tid"] == lane])


def assert_nested(lane: list[dict[str, Any]]) -> None:
    """A viewer draws spans of one lane over each other unless they contain one another or do not touch."""
    open_until: list[int] = []
    for span in sorted(lane, key=lambda span: (span["ts"], -span["dur"])):
        while open_until and open_until[-1] <= span["ts"]:
            open_until.pop()
        end = span["ts"] + span["dur"]
        assert not open_until or end <= open_until[-1] + 1000, span  # clocks differ by less than 1 ms
        open_until.append(end)


def test_a_sweep_has_no_timeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("contracts.processes.timeline._kept", None)
    with pytest.raises(InputError, match=r"a sweep takes no --timeline"):
        train.run(["-m", "seed=0,1", f"output_dir={tmp_path}", "--timeline"])
