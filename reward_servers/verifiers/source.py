"""Python source by its symbol table: its definitions, its needs, and whether it acts."""

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BUILT_IN = frozenset(dir(builtins)) | {"__name__", "__file__", "__annotations__"}
READS = re.compile(r"\binput\b|\bstdin\b|\bopen\(0")  # a program that reads its standard input
STARTS = re.compile(r"^(?:(?:from|import|def|async def|class)\b|@)", re.MULTILINE)
NO_ACT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
MOST_TRIES = 200  # tries with ever shorter texts


@dataclass(frozen=True, slots=True)
class Source:
    """A piece of Python.

    Example: `source_of("def f(x):\\n    return g(x)\\n")` defines {"f"} and needs {"g"}.
    """

    code: str
    defines: frozenset[str]  # functions, classes and variables of the module, without imports
    imports: frozenset[str]
    needs: frozenset[str]  # names that neither this piece nor Python defines
    acts: bool  # it acts, beyond definitions and values
    reads: bool


def source_of(code: str) -> Source | None:
    """Return a piece of Python's definitions and needs; None for anything else.

    >>> source = source_of("import math\\ndef f(x):\\n    return math.exp(g(x))\\n")
    >>> sorted(source.defines), sorted(source.imports), sorted(source.needs), source.acts
    (['f'], ['math'], ['g'], False)
    """
    source = _read(code)
    return source if isinstance(source, Source) else None


def part_that_is_python(text: str, fits: Callable[[Source], bool]) -> Source | None:
    """Return the Python before or after other text, such as a remark or a truncated line.

    >>> part_that_is_python("Sure!\\ndef f():\\n    return 1\\nThis returns 1.", lambda _: True).code
    'def f():\\n    return 1'
    """
    begin = STARTS.search(text)
    for start in dict.fromkeys((0, begin.start() if begin else 0)):
        lines = text[start:].splitlines()
        for _ in range(MOST_TRIES):
            parsed = _read("\n".join(lines))
            if isinstance(parsed, Source) and fits(parsed):
                return parsed
            wrong_line = len(lines) if isinstance(parsed, Source) else parsed
            lines = lines[: max(0, min(len(lines), wrong_line) - 1)]
            if not lines:
                break
    return None


def _read(code: str) -> Source | int:
    """Return the source, or the line of Python's syntax error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of invalid escapes
            tree = ast.parse(code)
            compile(tree, "program", "exec", dont_inherit=True)  # finds a `return` outside of functions
            table = symtable.symtable(code, "program", "exec")
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
    symbols = table.get_symbols()
    bound = {one.get_name() for one in symbols if one.is_assigned() or one.is_namespace()}
    imports = {one.get_name() for one in symbols if one.is_imported()}
    used = {one.get_name() for one in symbols if one.is_referenced()}
    for inner in _inner_tables(table):
        used |= {one.get_name() for one in inner.get_symbols() if one.is_global() and one.is_referenced()}
        bound |= {one.get_name() for one in inner.get_symbols() if one.is_declared_global()}
    return Source(
        code,
        defines=frozenset(bound - imports),
        imports=frozenset(imports),
        needs=frozenset(used - bound - imports - BUILT_IN),
        acts=any(_acts(statement) for statement in tree.body),
        reads=READS.search(code) is not None,
    )


def _acts(statement: ast.stmt) -> bool:
    if isinstance(statement, NO_ACT):
        return False
    if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign):
        return any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))
    return True


def _inner_tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for inner in table.get_children():
        yield inner
        yield from _inner_tables(inner)
