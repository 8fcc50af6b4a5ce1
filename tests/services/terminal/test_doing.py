"""Steps longer than a moment are told: as they begin, while they go on, and their seconds at the end."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.terminal.doing import doing

PATIENCE_S = 60.0


def wait_until(is_so: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_quick_is_not_worth_a_line() -> None:
    lines: list[str] = []
    with doing("counting", lines.append, first_s=3600.0):
        pass
    assert lines == []


def test_what_takes_long_is_told_from_its_beginning_to_its_end() -> None:
    lines: list[str] = []
    with doing("counting", lines.append, first_s=0.0, again_s=0.01):
        wait_until(lambda: len(lines) > 2)
    assert lines[0] == "counting …"
    assert re.fullmatch(r"counting: \d+ s so far", lines[1])
    assert re.fullmatch(r"counting took \d+(\.\d+)? m?s", lines[-1])


def test_of_things_within_each_other_the_innermost_is_told_again() -> None:
    lines: list[str] = []
    with doing("outer", lines.append, first_s=0.0, again_s=0.01):
        wait_until(lambda: "outer …" in lines)
        with doing("inner", lines.append, first_s=0.0, again_s=0.01):
            wait_until(lambda: "inner …" in lines)
            before = sum(text.startswith("outer:") for text in lines)
            wait_until(lambda: sum(text.startswith("inner:") for text in lines) > 3)
            assert sum(text.startswith("outer:") for text in lines) <= before + 1


def test_what_fails_is_not_said_to_be_done() -> None:
    lines: list[str] = []
    with pytest.raises(ValueError), doing("counting", lines.append, first_s=0.0, again_s=3600.0):
        wait_until(lambda: lines)
        raise ValueError
    assert lines == ["counting …"]


def test_a_command_that_loads_for_long_says_so_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "slow_command.py").write_text(
        "import time\ntime.sleep(1.5)\ndef run(arguments):\n    print('the result')\n    return 0\n"
    )
    script = "from services import cli; cli.COMMANDS['x'] = ('slow_command:run', ''); cli.main(['x'])"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{root}:{tmp_path}"},
        timeout=PATIENCE_S,
    )
    assert done.stdout == "the result\n"
    first, last = done.stderr.splitlines()
    assert first == "loading whetstone x …" and last.startswith("loading whetstone x took ")
