"""At the start a signal interrupts at once; then the first one asks, and the second one insists."""

import os
import signal
from collections.abc import Iterator

import pytest

from services.interrupts import Interrupted, StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    request = StopRequest()
    request.install()
    request.hold()
    yield request
    request.restore()


@pytest.mark.parametrize("number", SIGNALS)
def test_what_only_starts_is_interrupted_at_once(number: int) -> None:
    request = StopRequest()
    request.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    finally:
        request.restore()


def test_without_a_signal_nothing_is_asked(stop: StopRequest) -> None:
    stop.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_and_interrupts_nothing_by_itself(stop: StopRequest, number: int) -> None:
    os.kill(os.getpid(), number)

    with pytest.raises(Interrupted):
        stop.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_interrupts_at_once(stop: StopRequest, number: int) -> None:
    os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_afterwards_the_handlers_are_those_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    request = StopRequest()
    request.install()
    request.hold()
    assert [signal.getsignal(number) for number in SIGNALS] != before
    request.restore()

    assert [signal.getsignal(number) for number in SIGNALS] == before
