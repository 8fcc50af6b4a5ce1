"""A process's timeline: its entries and lanes, and no entries while it is off."""

import threading
import time
from collections.abc import Iterator

import pytest

from contracts.processes import timeline
from contracts.processes.timeline import Span


@pytest.fixture
def switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(timeline, "_kept", None)
    timeline.switch_on()
    timeline.drain()
    yield


def test_a_timeline_that_is_off_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_kept", None)
    monkeypatch.delenv(timeline.VARIABLE, raising=False)
    timeline.switch_on_where_asked()
    with timeline.span("update"), timeline.span_beside("call", "calls"):
        timeline.add("start", 0.0, 1.0)
        timeline.receive("worker 0", [Span("generates", "engine", 0.0, 1.0)])
    assert (timeline.is_on(), timeline.drain(), timeline.variable()) == (False, (), {})


def test_an_actor_keeps_spans_where_its_run_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_kept", None)
    timeline.switch_on()
    variables = timeline.variable()
    monkeypatch.setattr(timeline, "_kept", None)  # as in the actor's process
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    timeline.switch_on_where_asked()
    (start,) = timeline.drain()
    assert start.name == "process starts"
    assert abs(start.began_s + start.lasted_s - time.time()) < 5


@pytest.mark.usefixtures("switched_on")
def test_a_span_has_its_thread_its_begin_and_its_time() -> None:
    def work() -> None:
        with timeline.span("outer"), timeline.span("inner", lane="another"):
            time.sleep(0.05)

    before = time.time()
    thread = threading.Thread(target=work, name="engine")
    thread.start()
    thread.join()
    inner, outer = timeline.drain()
    assert (inner.name, inner.lane, outer.name, outer.lane) == ("inner", "another", "outer", "engine")
    assert before <= outer.began_s <= inner.began_s <= time.time()
    assert 0.05 <= inner.lasted_s <= outer.lasted_s < 5
    assert timeline.drain() == ()


@pytest.mark.usefixtures("switched_on")
def test_a_span_that_ends_in_an_error_is_kept() -> None:
    with pytest.raises(ZeroDivisionError), timeline.span("update"):
        _ = 1 / 0
    assert [span.name for span in timeline.drain()] == ["update"]


@pytest.mark.usefixtures("switched_on")
def test_spans_beside_one_another_have_lanes_of_their_own_and_use_them_again() -> None:
    with timeline.span_beside("a", "calls"):
        with timeline.span_beside("b", "calls"):
            pass
        with timeline.span_beside("c", "calls"):
            pass
    with timeline.span_beside("d", "calls"):
        pass
    lanes = {span.name: span.lane for span in timeline.drain()}
    assert lanes == {"a": "calls 1", "b": "calls 2", "c": "calls 2", "d": "calls 1"}


@pytest.mark.usefixtures("switched_on")
def test_received_spans_have_the_senders_name() -> None:
    timeline.receive("worker 0", [Span("generates", "engine", 10.0, 1.0)])
    assert timeline.drain() == (Span("generates", "engine", 10.0, 1.0, "worker 0"),)
