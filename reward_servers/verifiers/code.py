"""Run a program on its input, before its unit tests, or for its function's values, in this process."""

import builtins
import contextlib
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from reward_servers.verifiers.program import program_of
from reward_servers.verifiers.unit_tests import PROGRAM

RESULT = 3  # the file descriptor of what is said
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
RAISED = object()  # in place of a value


def prepare() -> None:
    """Import what programs often need, once for all of them."""
    leetcodes_names()
    program_of("```python\n```")


@cache
def leetcodes_names() -> dict[str, Any]:
    """Return Python's built-ins with LeetCode's names, which so never pass for the program's own."""
    names: dict[str, Any] = {}
    exec(LEETCODE, names)
    return {**names, **vars(builtins)}


def perform(payload: Mapping[str, Any]) -> bytes:
    """Run the program; write its output, or a line of JSON for each test that was reached.

    The payload has the program as `code`, or the response as `text` with `called` and `before` (see
    `program.program_of`), and one of these:

    - `stdin`: the program's input. Its output is what it prints, and its exit code is its own.
    - `tests`: unit tests, which import the program; `imports` and `setup` run around it. A line is
      `{"key": …, "passed": true}`.
    - `function` and `arguments`, a list for each call. A line is `{"key": …, "value": 3}`, without a value if
      the call raised something.
    """
    main = types.ModuleType("__main__")
    for name in PROGRAM:
        sys.modules[name] = main
    sys.argv = ["main.py"]
    sys.stdin = _input(payload.get("stdin", ""))
    program = _program(payload)
    if "stdin" in payload:
        _print(program, main)
        return b""
    main.__name__ = PROGRAM[1]  # its own trial under `if __name__ == "__main__":` reads an input, or exits
    if SOLUTION in payload["called"]:
        main.__dict__["__builtins__"] = leetcodes_names()
        sys.setrecursionlimit(RECURSION)
    for code in (payload.get("imports", ""), *program, payload.get("setup", "")):
        _execute(code, main)
    main.__name__ = "__main__"
    for found in _values(payload, main) if "function" in payload else _verdicts(payload["tests"], main):
        os.write(RESULT, json.dumps({"key": payload["key"], **found}).encode() + b"\n")
    return b""


def _program(payload: Mapping[str, Any]) -> Sequence[str]:
    if "code" in payload:
        return [payload["code"]]
    found = program_of(payload["text"], payload["called"], payload["before"])
    if not found:
        raise SystemExit("the text has no program")
    return found


def _print(program: Sequence[str], main: types.ModuleType) -> None:
    """Run a program whose output is the result."""
    os.dup2(RESULT, 1)
    os.dup2(2, RESULT)  # /dev/null
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    try:
        for code in program:
            _execute(code, main)
        _wait_for_threads()
    finally:
        sys.stdout.flush()


def _verdicts(tests: Sequence[str], main: types.ModuleType) -> Iterator[dict[str, Any]]:
    for test in tests:
        yield {"passed": True} if _tried(_execute, test, main) is not RAISED else {"passed": False}


def _values(payload: Mapping[str, Any], main: types.ModuleType) -> Iterator[dict[str, Any]]:
    def value_of(arguments: Sequence[Any]) -> Any:
        return _plain(_callee(main, payload["function"])(*arguments))

    for arguments in payload["arguments"]:
        found = _tried(value_of, arguments)
        yield {} if found is RAISED else {"value": found}


def _tried(work: Callable[..., Any], *given: Any) -> Any:
    try:
        return work(*given)
    except MemoryError:
        raise
    except (Exception, SystemExit):
        return RAISED


def _callee(main: types.ModuleType, name: str) -> Callable[..., Any]:
    """Return the function, which may be a method of LeetCode's class Solution."""
    solution = getattr(main, SOLUTION, None)
    found: Callable[..., Any] = getattr(solution() if hasattr(solution, name) else main, name)  # type: ignore[misc]
    return found


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it; numbers and arrays of other libraries become Python's.

    Raises:
        TypeError: JSON can't say it, as of a set or a generator, which equals no expected value.
    """
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
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
