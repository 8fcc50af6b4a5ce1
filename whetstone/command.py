"""Run a command in another process: show its lines at once, and raise an exception if it fails."""

import contextlib
import io
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

from whetstone.errors import InputError, RunError
from whetstone.own_place import MORE_FOLDERS, folders_of_modules

EXIT_INPUT, EXIT_INTERRUPTED = 2, 130
CHILD = "whetstone.child"
ANSWER = "WHETSTONE_ANSWER"  # the number of the pipe for a folder
SAID_BY_US = re.compile(r"^whetstone[ \w-]*: ", re.MULTILINE)
# A notebook's kernel sets some of these; a command would then write terminal codes into a pipe.
AS_ON_A_TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
LAST_WORDS_S = 10.0  # time to read lines left in the pipes after the process's end
MOST_LINES = 20  # last lines that replace a missing message of the process


def run_command(
    words: Sequence[str], *, module: str = "whetstone", show: bool = True, call: Any = None, answer: int = -1
) -> str:
    """Run `python -m MODULE WORDS` to its end, and return its output.

    The function passes an interruption (Ctrl-C, a notebook's stop button) to the command. A run saves itself,
    and then this function raises KeyboardInterrupt.

    Args:
        show: print the command's output; its standard error is always shown.
        call: goes to the process through its standard input, as a pickle; None: nothing goes there.
        answer: the pipe for the process's answer, whose number it gets in a variable; -1: none.

    Raises:
        InputError: the command refused its input.
        RunError: the command failed.
        KeyboardInterrupt: the command was interrupted, and has ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
        stdin=subprocess.DEVNULL if call is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment() | ({} if answer < 0 else {ANSWER: str(answer)}),
        pass_fds=() if answer < 0 else (answer,),
    )
    assert process.stdout is not None and process.stderr is not None
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it ended before it read all
            pipe.write(pickle.dumps(call))
    printed = _Lines(process.stdout, sys.stdout if show else None)
    stderr = _Lines(process.stderr, sys.stderr)
    was_interrupted = _wait(process)
    output, errors = printed.all(), stderr.all()
    if was_interrupted:
        raise KeyboardInterrupt
    if process.returncode == 0:
        return output
    message = _message(errors) or f"whetstone {' '.join(words[:1])} ended with exit code {process.returncode}"
    raise (InputError if process.returncode == EXIT_INPUT else RunError)(message)


class _Lines:
    """Reader of a pipe: it keeps each line, and prints it at once on `shown_on`, if given."""

    def __init__(self, pipe: IO[bytes], shown_on: IO[str] | None) -> None:
        self._pipe = io.TextIOWrapper(pipe, encoding="utf-8", errors="replace")  # type: ignore[type-var]
        self._shown_on = shown_on
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


def _wait(process: "subprocess.Popen[bytes]") -> bool:
    """Wait for the end, and pass on interruptions. Return whether there were any."""
    was_interrupted = False
    while True:
        try:
            process.wait()
            return was_interrupted
        except KeyboardInterrupt:
            was_interrupted = True
            process.terminate()


def _message(errors: str) -> str:
    """Return the last message of a command, without the command's name; else the last lines."""
    starts = [match.end() for match in SAID_BY_US.finditer(errors)]
    return errors[starts[-1] :].strip() if starts else "\n".join(errors.splitlines()[-MOST_LINES:])


def _environment() -> dict[str, str]:
    """Return this process's environment, with the folders of the user's modules."""
    kept = {name: value for name, value in os.environ.items() if name not in AS_ON_A_TERMINAL}
    return kept | {MORE_FOLDERS: folders_of_modules()}
