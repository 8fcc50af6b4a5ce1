"""A row's unit tests, texts that run after the program, with added missing calls."""

import ast
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from contracts.errors import InputError
from reward_servers.verifiers.source import BUILT_IN

PROGRAM = ("solution", "main", "__main__")  # modules as which tests import the program
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
# Runs the cases of a unittest.TestCase, and fails as a plain assertion does.
RUN_CASES = """import io as _io, unittest as _unittest
_cases = _unittest.defaultTestLoader.loadTestsFromTestCase({name})
_result = _unittest.TextTestRunner(stream=_io.StringIO()).run(_cases)
assert _result.wasSuccessful() and _result.testsRun"""
SENDABLE = ("numpy", "pytest", "parameterized", "mock")  # packages that tests may use apart from the program
PATCHED = ("builtins.input", "sys.stdout", "sys.stdin")  # a program gets these from the tests' process
NO_MAIN = "import unittest\nunittest.main = lambda *_, **__: None  # it would exit\n"


@dataclass(frozen=True, slots=True)
class UnitTests:
    """Texts of tests; a test passes if it raises nothing.

    Example: `UnitTests(("assert add(1, 2) == 3",), called=("add",))`
    """

    tests: tuple[str, ...]
    called: tuple[str, ...]  # names that they use and do not define
    imports: str = ""  # runs before the program
    setup: str = ""  # runs after the program

    @property
    def reaches_into(self) -> str:
        """The tests' actions that need the program in their process; "" for tests that only call it."""
        code = (self.imports, self.setup, *self.tests)
        return next((reach for text in code if (reach := _read(text, "tests").reaches_into)), "")


def unit_tests_of(tests: tuple[str, ...], meta: Mapping[str, Any]) -> UnitTests:
    """Return a row's unit tests, with calls of checks that they only define.

    Raises:
        InputError: a test is no Python, or would pass with any program.

    >>> tests = unit_tests_of(("def check(candidate):\\n    assert candidate(1) == 2",), {"entry_point": "f"})
    >>> tests.tests, tests.called
    (('def check(candidate):\\n    assert candidate(1) == 2\\ncheck(f)\\n',), ('f',))
    """
    name = meta.get("entry_point")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise InputError(f"code_tests: meta data entry_point: got {name!r:.60}; expected a function's name")
    with_calls = tuple(_with_calls(test, name) for test in tests)
    setup, imports = (_code(meta, column) for column in ("test_setup_code", "test_imports"))
    if name is not None:
        called = tuple(re.findall(r"[^\W\d]\w*", name)[:1])
    else:
        around = _read(setup, "test_setup_code"), _read(imports, "test_imports")
        used = around[0].uses.union(*(_read(test, "tests").uses for test in tests))
        called = tuple(sorted(used - around[0].binds - around[1].binds))
    return UnitTests(with_calls, called, imports, setup)


@dataclass(frozen=True, slots=True)
class _Read:
    """Names at the top level of a test's text; `uses` holds names that it does not define."""

    uses: frozenset[str]
    binds: frozenset[str]  # imports, variables and arguments, too
    defines: frozenset[str]
    calls: frozenset[str]
    cases: tuple[str, ...]
    checks: tuple[str, ...]  # functions test_… that nothing calls
    acts: bool
    reaches_into: str


def _with_calls(test: str, name: str | None) -> str:
    """Return a test with calls of its uncalled checks."""
    read = _read(test, "tests")
    more = [f"{check}()" for check in read.checks] + [RUN_CASES.format(name=case) for case in read.cases]
    if "check" in read.defines - read.calls and name is not None:
        more.append(f"check({name})")
    if not more and not read.acts:
        defined = ", ".join(sorted(read.defines)) or "nothing"
        raise InputError(
            f"code_tests: the tests define {defined} and never call it, so that any program would pass; "
            "expected a call, or the function's name in the meta data entry_point: "
            "task.meta_columns=[tests, entry_point]"
        )
    before = NO_MAIN if "unittest.main(" in test else ""
    return before + "\n".join([test, *more, ""]) if more else test


def _code(meta: Mapping[str, Any], column: str) -> str:
    cell = meta.get(column)
    lines = [] if cell is None else [cell] if isinstance(cell, str) else cell
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise InputError(f"code_tests: meta data {column}: got {cell!r:.100}; expected code, or lines of it")
    _read(code := "\n".join(lines), column)
    return code


@lru_cache(maxsize=4096)
def _read(code: str, column: str) -> _Read:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            f"code_tests: meta data {column}: expected Python, and Python says: {error}; got {code!r:.200}"
        ) from None
    nodes = list(ast.walk(tree))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, DEFINITIONS[:3])}
    imported = list(_imports(nodes))
    bound |= {name for module, name in imported if module not in PROGRAM}
    used = {node.id for node in names} | {name for module, name in imported if module in PROGRAM}
    outside = [statement for statement in tree.body if not isinstance(statement, DEFINITIONS)]
    calls = {
        node.func.id
        for statement in outside
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
    return _Read(
        uses=frozenset(used - bound - BUILT_IN),
        binds=frozenset(bound),
        defines=frozenset((*functions, *classes)),
        calls=frozenset(calls),
        cases=tuple(
            name for name, one in classes.items() if "TestCase" in " ".join(map(ast.unparse, one.bases))
        ),
        checks=tuple(
            name
            for name, function in functions.items()
            if name.startswith("test_") and name not in calls and not function.args.args
        ),
        acts=any(not isinstance(one, ast.Assign | ast.AnnAssign) or _calls_any(one) for one in outside),
        reaches_into=next(_reaches(nodes), ""),
    )


def _reaches(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the tests' patches of foreign modules, and the packages whose objects can't be sent."""
    for node in nodes:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else names
        for package in (name.partition(".")[0] for name in names):
            if package not in sys.stdlib_module_names and package not in (*PROGRAM, *SENDABLE, ""):
                yield f"use {package}, whose objects can't be sent to the program"
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("patch"):
            target = getattr(node.args[0], "value", None)
            if isinstance(target, str) and target not in PATCHED and target.partition(".")[0] not in PROGRAM:
                yield f"patch {target!r:.80}, which the program does not see"


def _calls_any(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield each import's module and bound name."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                yield module, alias.asname or alias.name.partition(".")[0]
