"""Run a program on its input, before its unit tests, or for its function's values, in this process.

Unit tests that run apart have two processes: `ask` runs the tests, and `serve` the program that they call.
"""

import builtins
import contextlib
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from reward_servers.apart.program import Program as Served
from reward_servers.apart.tests import Program as Asked
from reward_servers.verifiers.program import program_of
from reward_servers.verifiers.unit_tests import PROGRAM

RESULT = 3  # the file descriptor of the output
# Names that LeetCode's starter code uses without an import; LiveCodeBench and APPS give them, too.
LEETCODE = """
from string import *; from re import *; from datetime import *; from collections import *
from heapq import *; from bisect import *; from copy import *; from math import *; from random import *
from statistics import *; from itertools import *; from functools import *; from operator import *
from typing import *; from builtins import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools
import functools, operator, io, sys, json
"""
RECURSION = 50_000  # LiveCodeBench's limit
SOLUTION = "Solution"
RAISED = object()  # stands in the place of a value


def prepare() -> None:
    """Import frequent modules once for all programs."""
    leetcodes_names()
    program_of("```python\n```")


@cache
def leetcodes_names() -> dict[str, Any]:
    """Return Python's built-ins with LeetCode's names, so these never count as the program's."""
    names: dict[str, Any] = {}
    exec(LEETCODE, names)
    return {**names, **vars(builtins)}


def perform(payload: Mapping[str, Any]) -> bytes:
    """Run the program; write its output, or a line of JSON for each reached test.

    The payload has the program as `code`, or the response as `text` with `called` and `before` (see
    `program.program_of`), and one of these:

    - `stdin`: the program's input. The output is the program's, and so is the exit code.
    - `tests`: unit tests, which import the program; `imports` and `setup` run around it. A line is
      `{"key": …, "passed": true}`. The tests share the program's process.
    - `function` and `arguments`, a list for each call. A line is `{"key": …, "value": 3}`, without a value if
      the call raised.
    """
    if "stdin" in payload:
        main = _main()
        sys.stdin = _input(payload["stdin"])
        _print(_program(payload), main)
        return b""
    main = _loaded(payload)
    if "function" in payload:
        _say(payload["key"], _values(payload, main))
        return b""
    _execute(payload["setup"], main)
    main.__name__ = "__main__"
    _say(payload["key"], _verdicts(payload["tests"], lambda test: _execute(test, main)))
    return b""


def ask(payload: Mapping[str, Any], file: int) -> bytes:
    """Run unit tests of the program at the other end of `file`; write lines like `perform`."""
    program = Asked(file, payload["called"])
    sys.argv = ["main.py"]
    for code in (payload["imports"], payload["setup"]):
        program.names.run(code)
    _say(payload["key"], _verdicts(payload["tests"], program.names.run))
    return b""


def serve(payload: Mapping[str, Any], file: int) -> bytes:
    """Run the program, and then execute requests of the tests at the other end of `file`."""
    os.dup2(2, RESULT)  # /dev/null: no verdict is made here
    Served(_loaded(payload), file).run()
    return b""


def _say(key: str, lines: Iterable[Mapping[str, Any]]) -> None:
    for line in lines:
        os.write(RESULT, json.dumps({"key": key, **line}).encode() + b"\n")


def _main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    for name in PROGRAM:
        sys.modules[name] = main
    sys.argv = ["main.py"]
    return main


def _loaded(payload: Mapping[str, Any]) -> types.ModuleType:
    """Return the program's module, after it has run."""
    main = _main()
    sys.stdin = _input("")
    main.__name__ = PROGRAM[1]  # its own trial under `if __name__ == "__main__":` reads an input, or exits
    program = _program(payload)
    if SOLUTION in payload["called"]:
        main.__dict__["__builtins__"] = leetcodes_names()
        sys.setrecursionlimit(RECURSION)
    for code in (payload.get("imports", ""), *program):
        _execute(code, main)
    return main


def _program(payload: Mapping[str, Any]) -> Sequence[str]:
    if "code" in payload:
        return [payload["code"]]
    program = program_of(payload["text"], payload["called"], payload["before"])
    if not program:
        raise SystemExit("the text has no program")
    return program


def _print(program: Sequence[str], main: types.ModuleType) -> None:
    """Run a program; its output is the result."""
    os.dup2(RESULT, 1)
    os.dup2(2, RESULT)  # /dev/null
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    try:
        for code in program:
            _execute(code, main)
        _wait_for_threads()
    finally:
        sys.stdout.flush()


def _verdicts(tests: Sequence[str], run: Callable[[str], Any]) -> Iterator[dict[str, Any]]:
    for test in tests:
        yield {"passed": _tried(run, test) is not RAISED}


def _values(payload: Mapping[str, Any], main: types.ModuleType) -> Iterator[dict[str, Any]]:
    def value_of(arguments: Sequence[Any]) -> Any:
        return _plain(_callee(main, payload["function"])(*arguments))

    for arguments in payload["arguments"]:
        value = _tried(value_of, arguments)
        yield {} if value is RAISED else {"value": value}


def _tried(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except MemoryError:
        raise
    except (Exception, SystemExit):
        return RAISED


def _callee(main: types.ModuleType, name: str) -> Callable[..., Any]:
    """Return the function, which may be a method of LeetCode's class Solution."""
    solution = getattr(main, SOLUTION, None)
    function: Callable[..., Any] = getattr(solution() if hasattr(solution, name) else main, name)  # type: ignore[misc]
    return function


def _plain(value: Any) -> Any:
    """Convert a value to JSON data; other libraries' numbers and arrays become Python's.

    Raises:
        TypeError: JSON has no such value, for example a set or a generator, which equals no expected value.
    """
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {str(key): _plain(element) for key, element in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "tolist"):  # NumPy's
        return _plain(value.tolist())
    if isinstance(value, types.GeneratorType | set | frozenset | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"{type(value).__name__} is no value of JSON")
    return int(value) if value == int(value) else float(value)  # Decimal, Fraction


def _execute(code: str, main: types.ModuleType) -> None:
    exec(compile(code, "main.py", "exec", dont_inherit=True), main.__dict__)


def _input(text: str) -> Any:
    with os.fdopen(0, "wb", closefd=False) as file:
        file.write(text.encode())
    os.lseek(0, 0, os.SEEK_SET)
    return os.fdopen(0, encoding="utf-8", closefd=False)


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            with contextlib.suppress(RuntimeError):
                thread.join()
