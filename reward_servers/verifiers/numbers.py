"""Equality of parsed answers: exact for numbers, at several points for expressions with variables."""

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import MatrixBase

from reward_servers.verifiers.expressions import Value

DIGITS, AGREE = 320, 300
POINTS = ("0.734512", "1.918273", "-0.391827", "2.647381", "0.128374")  # numbers that replace variables
LEAST_DIGITS = 6  # digits of a rounded number


def same_value(right: Value, answer: Value) -> bool:
    """Return whether two answers are equal; a single percentage counts as a number or a share."""
    if right.unit and answer.unit and right.unit != answer.unit:
        return False
    if right.is_percent != answer.is_percent and is_number(right.value) and is_number(answer.value):
        share = sympy.Rational(1, 100)
        scaled = [one.value * share if one.is_percent else one.value for one in (right, answer)]
        return equal(right.value, answer.value) or equal(*scaled)
    return equal(right.value, answer.value) or _rounded(right, answer) or _rounded(answer, right)


def equal(right: Any, answer: Any) -> bool:
    """Return whether two of sympy's objects are equal."""
    if isinstance(right, MatrixBase) or isinstance(answer, MatrixBase):
        shapes = getattr(right, "shape", None), getattr(answer, "shape", None)
        return shapes[0] == shapes[1] and all(map(equal, right, answer))
    if not (isinstance(right, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return bool(right == answer)
    if right == answer:
        return True
    if is_number(right) and is_number(answer):
        return _equal_numbers(right, answer)
    symbols = sorted(right.free_symbols | answer.free_symbols, key=str)
    return _agree(right, answer, symbols)


def _equal_numbers(right: Any, answer: Any) -> bool:
    if right.is_Rational and answer.is_Rational:
        return bool(right == answer)
    difference = right - answer
    if difference.is_Rational:
        return bool(difference == 0)
    return _close(right, answer, DIGITS, AGREE)


def _agree(right: Any, answer: Any, symbols: Sequence[Any]) -> bool:
    """Return whether two expressions agree at all points with both values, at least two."""
    num_same = 0
    for shift in range(len(POINTS)):
        point = {
            symbol: sympy.Rational(POINTS[(place + shift) % len(POINTS)]) + place // len(POINTS)
            for place, symbol in enumerate(symbols)
        }
        values = right.subs(point), answer.subs(point)
        if all(is_number(value) and value.is_finite is not False for value in values) and _as_real(*values):
            if not _close(*values, 80, 60):
                return False
            num_same += 1
    return num_same >= 2


def _as_real(right: Any, answer: Any) -> bool:
    """Return whether both or neither are real, because a logarithm's sides have other domains."""
    return bool(sympy.N(right).is_real == sympy.N(answer).is_real)


def _close(right: Any, answer: Any, digits: int, agree: int) -> bool:
    """Return whether two numbers agree in so many digits, relative to their size."""
    right, answer = sympy.N(right, digits), sympy.N(answer, digits)
    if not (right.is_number and answer.is_number) or right.has(sympy.nan) or answer.has(sympy.nan):
        return False
    if not right.is_finite or not answer.is_finite:
        return bool(right == answer)
    size = max(abs(right), abs(answer))
    return bool(size == 0 or abs(right - answer) <= size * sympy.Float(10, digits) ** -agree)


def _rounded(exact: Value, rounded: Value) -> bool:
    """Return whether one answer is the other, rounded to the written decimals."""
    decimals = rounded.decimals
    if decimals is None or len(rounded.written.strip("-0.").replace(".", "")) < LEAST_DIGITS:
        return False
    if not is_number(exact.value) or (exact.decimals is not None and exact.decimals <= decimals):
        return False
    half = sympy.Rational(1, 2 * 10**decimals)
    difference = sympy.N(exact.value - rounded.value, 30)
    return bool(difference.is_real and abs(difference) <= half)


def is_number(value: Any) -> bool:
    return bool(isinstance(value, sympy.Expr) and value.is_number)
