"""Run a command in another process: show its lines as they come, and raise an exception where it fails."""

import os
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from typing import IO

from whetstone.errors import InputError, RunError
from whetstone.own_place import MORE_FOLDERS

EXIT_INPUT, EXIT_INTERRUPTED = 2, 130
SAID_BY_US = re.compile(r"^whetstone[ \w-]*: ", re.MULTILINE)
# A notebook's kernel sets some of these; a command would then write terminal codes into a pipe.
AS_ON_A_TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
LAST_WORDS_S = 10.0  # time to read lines that are still in the pipes when the process has ended
MOST_LINES = 20  # last lines that stand for the message of a process without one


def run_command(words: Sequence[str], *, module: str = "whetstone", show: bool = True) -> str:
    """Run `python -m MODULE WORDS` to its end, and return what it printed.

    An interruption (Ctrl-C, a notebook's stop button) is passed to the command: a run saves itself, and then
    this function raises KeyboardInterrupt.

    Args:
        show: print the command's output; its standard error is always shown.

    Raises:
        InputError: the command refused its input.
        RunError: the command failed.
        KeyboardInterrupt: the command was interrupted, and has ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=_environment(),
    )
    assert process.stdout is not None and process.stderr is not None
    printed = _Lines(process.stdout, sys.stdout if show else None)
    said = _Lines(process.stderr, sys.stderr)
    was_interrupted = _wait(process)
    output, errors = printed.all(), said.all()
    if was_interrupted:
        raise KeyboardInterrupt
    if process.returncode == 0:
        return output
    message = _message(errors) or f"whetstone {' '.join(words[:1])} ended with exit code {process.returncode}"
    raise (InputError if process.returncode == EXIT_INPUT else RunError)(message)


class _Lines:
    """Reader of a pipe: it keeps each line, and prints it on `shown_on` at once, if given."""

    def __init__(self, pipe: IO[str], shown_on: IO[str] | None) -> None:
        self._pipe, self._shown_on = pipe, shown_on
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._pipe:
            self._lines.append(line)
            if self._shown_on is not None:
                print(line, end="", file=self._shown_on, flush=True)

    def all(self) -> str:
        self._thread.join(LAST_WORDS_S)
        return "".join(self._lines)


def _wait(process: "subprocess.Popen[str]") -> bool:
    """Wait for the end, and pass on interruptions. Return whether there were any."""
    was_interrupted = False
    while True:
        try:
            process.wait()
            return was_interrupted
        except KeyboardInterrupt:
            was_interrupted = True
            process.terminate()


def _message(said: str) -> str:
    """Return the last message of a command, without its name; else the last lines."""
    starts = [found.end() for found in SAID_BY_US.finditer(said)]
    return said[starts[-1] :].strip() if starts else "\n".join(said.splitlines()[-MOST_LINES:])


def _environment() -> dict[str, str]:
    """Return this process's environment, with the folders in which it finds the user's modules."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders = [
        os.path.abspath(folder)
        for folder in sys.path
        if os.path.isdir(folder or os.curdir)
        and not any(os.path.abspath(folder).startswith(i) for i in installed)
    ]
    given = os.environ.get(MORE_FOLDERS, "")
    kept = {name: value for name, value in os.environ.items() if name not in AS_ON_A_TERMINAL}
    return kept | {MORE_FOLDERS: os.pathsep.join(dict.fromkeys([*folders, *filter(None, [given])]))}
