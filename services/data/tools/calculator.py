"""Compute a sum."""

import ast
import operator
from collections.abc import Callable
from typing import Any

MOST = 1e15  # limit of a power's result, because larger ones would take long
LONGEST = 200  # characters
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, power: _power(base, power),
}
UNARY: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers, + - * / // % ** and brackets, such as (3 + 4) * 2
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters; at most {LONGEST} are read")
    value = _value(ast.parse(expression.strip(), mode="eval").body)
    whole = isinstance(value, float) and value.is_integer() and abs(value) < MOST
    return str(int(value) if whole else value)


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        return BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand))
    raise ValueError(
        f"{ast.unparse(node)!r} is not arithmetic; expected numbers, + - * / // % ** and brackets"
    )


def _power(base: Any, power: Any) -> Any:
    if abs(power) > 64 or abs(base) ** abs(power) > MOST:
        raise ValueError(f"{base} ** {power} is too large")
    if base < 0 and power != int(power):
        raise ValueError(f"{base} ** {power} is not a real number")
    return base**power
