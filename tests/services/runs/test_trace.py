"""The timeline's file: Chrome's format, readable at any time, and no run fails of it."""

import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from contracts.processes import timeline
from contracts.processes.timeline import Span
from services.runs.trace import COMMAND, Trace, written

UPDATE = Span("update", "calls", 1795459180.25, 0.8, "the learner")
GENERATES = Span("generates", "engine", 1795459179.0, 1.0, "worker 0")
WAITS = Span("waits", "MainThread", 1795459179.0, 1.2)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(timeline, "_kept", None)
    timeline.switch_on()
    timeline.drain()
    yield


def events(text: str) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(text)
    return parsed


def test_spans_become_complete_events_in_microseconds() -> None:
    file = StringIO()
    trace = Trace(file)
    trace.write([UPDATE])
    trace.end()
    (shown,) = [event for event in events(file.getvalue()) if event["ph"] == "X"]
    assert shown == {
        **{"name": "update", "ph": "X", "pid": 1, "tid": 1},
        **{"ts": 1795459180250000, "dur": 800000},
    }


def test_processes_and_lanes_are_named_once_and_told_apart() -> None:
    file = StringIO()
    trace = Trace(file)
    trace.write([UPDATE, GENERATES])
    trace.write([WAITS, UPDATE, Span("push", "another", 1.0, 1.0, "the learner")])
    trace.end()
    rows = events(file.getvalue())
    processes = {event["pid"]: event["args"]["name"] for event in rows if event["name"] == "process_name"}
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in rows if e["name"] == "thread_name"}
    assert processes == {1: "the learner", 2: "worker 0", 3: COMMAND}
    assert lanes == {(1, 1): "calls", (2, 1): "engine", (3, 1): "main", (1, 2): "another"}
    assert len(rows) == 5 + 3 * 2 + 4
    assert [event["pid"] for event in rows if event["name"] == "update"] == [1, 1]


def test_a_file_that_was_cut_off_lacks_only_its_end() -> None:
    file = StringIO()
    Trace(file).write([UPDATE, GENERATES])
    assert len(events(file.getvalue() + "]")) == 2 * 4


def test_a_run_writes_what_was_kept_and_received(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with pytest.raises(ZeroDivisionError), written(path), timeline.span("iteration 1"):
        timeline.receive("worker 0", [GENERATES])
        _ = 1 / 0
    names = {event["name"] for event in events(path.read_text()) if event["ph"] == "X"}
    assert names == {"generates", "iteration 1"}


def test_a_run_that_asked_for_none_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_kept", None)
    with written(tmp_path / "timeline.json"):
        pass
    assert not any(tmp_path.iterdir())


def test_a_timeline_that_cant_be_written_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), written(tmp_path / "missing" / "timeline.json"):
        pass
    assert "can't be written" in caplog.text
