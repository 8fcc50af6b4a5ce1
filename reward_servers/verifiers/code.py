"""Run a program on its input, or a program and then its unit tests, in this process."""

import contextlib
import os
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from typing import Any

IMPORTED = "main"  # the program's name where it is no script


def perform(payload: Mapping[str, Any]) -> Any:
    """Return the program's output, or `{"key": …, "passed": [true, …]}` for its unit tests.

    The exit code of a program is its own. Unit tests import the program. A test passes if it raises nothing.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = sys.modules[IMPORTED] = main
    sys.argv = ["main.py"]
    sys.stdin = _input(payload.get("stdin", ""))
    if "tests" not in payload:
        os.dup2(3, 1)
        os.close(3)
        os.open(os.devnull, os.O_WRONLY)  # takes the number 3
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
        try:
            _execute(payload["code"], main)
            _wait_for_threads()
        finally:
            sys.stdout.flush()
        return b""
    main.__name__ = IMPORTED  # its own trial under `if __name__ == "__main__":` reads an input, or exits
    _execute(payload["code"], main)
    main.__name__ = "__main__"
    passed = []
    for test in payload["tests"]:
        try:
            _execute(test, main)
            passed.append(True)
        except MemoryError:
            raise
        except (Exception, SystemExit):
            passed.append(False)
    return {"key": payload["key"], "passed": passed}


def _execute(code: str, main: types.ModuleType) -> None:
    exec(compile(code, "main.py", "exec"), main.__dict__)


def _input(text: str) -> Any:
    file = tempfile.TemporaryFile(dir=".")  # noqa: SIM115  (it is the program's input)
    file.write(text.encode())
    file.seek(0)
    os.dup2(file.fileno(), 0)
    return os.fdopen(0, encoding="utf-8", closefd=False)


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            with contextlib.suppress(RuntimeError):
                thread.join()
