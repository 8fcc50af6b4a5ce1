"""A learner's process, watched from outside."""

import time
from typing import Any

import pytest

from learner.actors.watch import SILENT_S, SLOW_S, Watched
from learner.settings import LearnerSettings

NOBODY: Any = None  # no call is made


@pytest.mark.parametrize(
    ("since_heard", "since_change", "gets_on"),
    [
        (1.0, 1.0, True),
        (1.0, SLOW_S - 5, True),
        (1.0, SLOW_S + 1, False),
        (SILENT_S + 1, SILENT_S + 1, False),
    ],
)
def test_a_slow_micro_batch_is_no_standstill(since_heard: float, since_change: float, gets_on: bool) -> None:
    now = time.monotonic()
    watched = Watched("the learner", NOBODY, LearnerSettings(), progress=("update", 3, 24))
    watched.heard_at, watched.changed_at = now - since_heard, now - since_change
    assert watched.gets_on is gets_on


def test_a_process_that_starts_does_not_get_on_yet() -> None:
    assert not Watched("the learner", NOBODY, LearnerSettings()).gets_on
