"""Read the comments of a class's fields from its source, on a field's line or above it."""

import ast
import inspect
import io
import textwrap
import tokenize


def comments(kind: type) -> dict[str, str]:
    """Return the comments of a class's fields, including its base classes."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] not in ("builtins", "typing", "pydantic", "abc"):
            of_base = of_source(textwrap.dedent(inspect.getsource(base)))
            texts |= {name: text for name, text in of_base.items() if text or name not in texts}
    return {name: text for name, text in texts.items() if text}


def of_source(source: str) -> dict[str, str]:
    """Return the comment of each field in the source of a class; "" for a field without one.

    >>> of_source("class A:\\n  # Of all\\n  # parts.\\n  a: int\\n  b: int = 0  # alone\\n  c: int")
    {'a': 'Of all parts.', 'b': 'alone', 'c': ''}
    """
    beside, above = _comments_by_line(source)
    (parsed,) = ast.parse(source).body
    fields = [node for node in getattr(parsed, "body", ()) if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(field.target): _of_field(field, beside, above) for field in fields}


def _of_field(field: ast.AnnAssign, beside: dict[int, str], above: dict[int, str]) -> str:
    lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
    if on_its_lines := [beside[line] for line in lines if line in beside]:
        return " ".join(on_its_lines)
    first = field.lineno
    while first - 1 in above:
        first -= 1
    return " ".join(above[line] for line in range(first, field.lineno))


def _comments_by_line(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Return two tables by line number: comments behind code, and comments on separate lines."""
    beside: dict[int, str] = {}
    above: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            (above if alone else beside)[token.start[0]] = token.string.lstrip("# ").strip()
    return beside, above
