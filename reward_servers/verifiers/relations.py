"""Equations and inequalities: the sign and the difference of the sides, and inequalities as intervals."""

import re
from typing import Any

import sympy

from reward_servers.verifiers.expressions import parsed
from reward_servers.verifiers.numbers import POINTS, equal, is_number

VARIABLE, COMMAND = re.compile(r"[a-zA-Z]"), re.compile(r"\\[a-zA-Z]+")
LEFT = re.compile(r"\s*([A-Za-z]\w*(?:_\{?\w+\}?)?(?:\([a-z]\))?|\\[a-z]+)\s*(=|\\in\b)(?![=])\s*")
SIDES = re.compile(r"(?<![\\<>!=])=(?!=)")
RELATION = re.compile(r"\\(?:le|leq|leqslant|ge|geq|geqslant|lt|gt|ne|neq)(?![a-zA-Z])|<=|>=|!=|<|>|=")
OR = re.compile(r"\s+or\s+")
SIGNS = {
    **{"le": "<=", "leq": "<=", "leqslant": "<=", "lt": "<", "ne": "!=", "neq": "!="},
    **{"ge": ">=", "geq": ">=", "geqslant": ">=", "gt": ">"},
}
TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


def relation(text: str) -> tuple[str, Any] | None:
    """Return a relation's sign and the difference of its sides; None for no or several relations."""
    signs = list(RELATION.finditer(text))
    if len(signs) != 1:
        return None
    left, right = parsed(text[: signs[0].start()]), parsed(text[signs[0].end() :])
    if left is None or right is None or not all(isinstance(side.value, sympy.Expr) for side in (left, right)):
        return None
    return _sign(signs[0][0]), left.value - right.value


def same_relation(right: tuple[str, Any], answer: tuple[str, Any]) -> bool:
    """Return whether one relation's difference is a multiple of the other's, so both are equivalent."""
    (sign, one), (other, two) = right, answer
    if one.free_symbols != two.free_symbols or one == 0 or two == 0:
        return sign == other and bool(one == two)
    point = {
        symbol: sympy.Rational(POINTS[place % 5]) + place
        for place, symbol in enumerate(sorted(one.free_symbols, key=str))
    }
    at = one.subs(point), two.subs(point)
    if not all(is_number(value) and value != 0 for value in at):
        return sign == other and bool(one == two)
    ratio = at[0] / at[1]
    is_turned = bool(sympy.N(ratio) < 0)
    return sign == (TURNED[other] if is_turned else other) and equal(one, ratio * two)


def interval(text: str) -> str | None:
    r"""Return inequalities of one variable as an interval or a union; None for other texts.

    >>> interval("x < 3"), interval(r"2 \ge x > 1"), interval("x < y")
    ('(-\\infty, 3)', '(1, 2]', None)
    """
    if len(either := OR.split(text)) > 1:
        intervals = [interval(part) or "" for part in either]
        return r" \cup ".join(intervals) if all(intervals) else None
    signs = [_sign(sign[0]) for sign in RELATION.finditer(text)]
    parts = [part.strip() for part in RELATION.split(text)]
    if signs and signs[0].startswith(">"):
        parts, signs = parts[::-1], [TURNED[sign] for sign in signs[::-1]]
    if not 1 <= len(signs) <= 2 or any(sign[0] != "<" for sign in signs):
        return None
    if len(parts) == 2:
        is_below = VARIABLE.fullmatch(parts[0]) is not None
        parts, signs = (
            ([r"-\infty", *parts], ["<", *signs]) if is_below else ([*parts, r"\infty"], [*signs, "<"])
        )
    low, variable, high = parts
    if not VARIABLE.fullmatch(variable) or any(
        VARIABLE.search(COMMAND.sub("", bound)) for bound in (low, high)
    ):
        return None
    return f"{'[' if '=' in signs[0] else '('}{low}, {high}{']' if '=' in signs[1] else ')'}"


def _sign(written: str) -> str:
    return SIGNS.get(written.lstrip("\\"), written)


def right_side(text: str) -> tuple[str, str]:
    """Return a text's variable, "" without one, and the last right side."""
    named = LEFT.match(text)
    if named is None:  # 1 + 2 = 3, without variables
        is_chain = VARIABLE.search(COMMAND.sub("", text)) is None
        return "", SIDES.split(text)[-1].strip() if is_chain else text
    rest = text[named.end() :]
    parts = SIDES.split(rest)
    if len(parts) > 1 and not re.search(r"[,;]|\b(?:and|or)\b", rest):
        rest = parts[-1].strip()
    return re.sub(r"[\s{}]|\([a-z]\)", "", named[1]).lower(), rest
