"""Waits until something is so, and commands that serve until Ctrl-C."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def served_until_ctrl_c(*words: str) -> Iterator[str]:
    """Start a `whetstone` command, yield the address that it prints, and expect a regular end by Ctrl-C."""
    command = [sys.executable, "-m", "services.cli", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield re.findall(r"http://[\d.:]+", process.stdout.readline())[0]
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 0
        finally:
            process.kill()


def until(is_true: Callable[[], object], patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not is_true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
