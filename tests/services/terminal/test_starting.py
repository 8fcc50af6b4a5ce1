"""A start: a line for each part, and never a long silence."""

import re
import time

import pytest

from services.terminal.starting import Starting


def test_each_part_has_a_line_with_its_time_and_silence_is_filled() -> None:
    timed: list[tuple[float, str]] = []
    began = time.monotonic()

    def say(text: str) -> None:
        timed.append((time.monotonic() - began, text))

    with Starting(("the reward servers", "the learner"), say, silence_s=0.1) as starting:
        time.sleep(0.35)
        starting.is_up("the reward servers")
        time.sleep(0.15)
        starting.is_up("the learner")
        time.sleep(0.25)  # nothing is missing any more

    lines = [text for _, text in timed]
    assert lines[0] == "starting the reward servers and the learner …"
    assert lines[1] == "starting the reward servers and the learner: 0 s so far"
    assert any(re.fullmatch(r"the reward servers took \d+ ms to start", line) for line in lines)
    assert "starting the learner: 0 s so far" in lines
    assert re.fullmatch(r"the learner took \d+ ms to start", lines[-1])
    assert lines.count(lines[1]) >= 2


def test_what_a_part_says_of_itself_is_in_brackets_once() -> None:
    lines: list[str] = []
    with Starting(("the learner",), lines.append, silence_s=0.1) as starting:
        starting.hear("waiting 2 s for the learner")
        time.sleep(0.25)

    so_far = "starting the learner: 0 s so far"
    assert lines == ["starting the learner …", f"{so_far} (waiting 2 s for the learner)", so_far]


def test_a_start_that_fails_ends_the_lines() -> None:
    lines: list[str] = []
    with pytest.raises(RuntimeError), Starting(("a", "b"), lines.append, silence_s=0.05):
        raise RuntimeError
    count = len(lines)
    time.sleep(0.15)

    assert len(lines) == count
