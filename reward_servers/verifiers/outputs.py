"""Compare a program's output or a function's value with a test's expectation.

    compare   equal if
    exact     the texts are equal, except a line end after the last line
    lines     the lines are equal without blanks at their ends, and without empty lines at the text's end
    tokens    the words between blanks and line ends are equal
    numbers   the same, and two numbers are equal by value: 0.50 is 0.5, and 1/3 may be printed as 0.333333333

Windows' line ends are line ends. Two whole numbers are equal only if they are the same; others may differ by
1e-6, times the expected number if it is above 1, as contests allow.
"""

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

Compare = Literal["exact", "lines", "tokens", "numbers"]
TOLERANCE = 1e-6
MOST_DIGITS = 4000  # limit of a number that is compared by value


def same_output(printed: str, expected: str, compare: Compare) -> bool:
    """Return whether a program printed the expected output.

    >>> ways = ("exact", "lines", "tokens", "numbers")
    >>> [same_output("1 2 \\r\\n3\\n\\n", "1 2\\n3", way) for way in ways]
    [False, True, True, True]
    >>> [same_output("1 2\\n3.0", "1 2\\n3", way) for way in ways]
    [False, False, False, True]
    """
    left, right = (text.replace("\r\n", "\n") for text in (printed, expected))
    if compare == "exact":
        return left.removesuffix("\n") == right.removesuffix("\n")
    if compare == "lines":
        return _lines(left) == _lines(right)
    words, wanted = left.split(), right.split()
    if compare == "tokens" or words == wanted:
        return words == wanted
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def same_value(returned: Any, expected: Any) -> bool:
    """Return whether a function returned the expected value; both come from JSON, and tuples are lists.

    >>> same_value([1, [2.0000000001]], [1, (2,)]), same_value({"1": "a"}, {1: "a"}), same_value("3", 3)
    (True, True, False)
    """
    if isinstance(expected, list | tuple):
        return (
            isinstance(returned, list | tuple)
            and len(returned) == len(expected)
            and all(map(same_value, returned, expected))
        )
    if isinstance(expected, Mapping):
        if not isinstance(returned, Mapping):
            return False
        left, right = ({str(key): value for key, value in one.items()} for one in (returned, expected))
        return left.keys() == right.keys() and all(same_value(left[key], right[key]) for key in right)
    if isinstance(expected, float) or (isinstance(returned, float) and isinstance(expected, int)):
        return isinstance(returned, int | float) and _is_near(returned, expected)
    return bool(returned == expected)


def _is_near(number: float, expected: float) -> bool:
    if isinstance(number, float) and math.isnan(number):
        return math.isnan(expected)
    try:
        return number == expected or abs(number - expected) <= TOLERANCE * max(1.0, abs(expected))
    except OverflowError:  # a whole number beyond every float
        return False


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    left, right = _number(word), _number(expected)
    if left is None or right is None:
        return False
    if left == left.to_integral_value() and right == right.to_integral_value():
        return left == right
    return abs(left - right) <= Decimal(TOLERANCE) * max(Decimal(1), abs(right))


def _number(word: str) -> Decimal | None:
    """Return a finite number; None for other words and absurdly long numbers."""
    try:
        number = Decimal(word) if len(word) <= MOST_DIGITS and "_" not in word else None
    except InvalidOperation:
        return None
    is_usable = number is not None and number.is_finite() and abs(number.adjusted()) < MOST_DIGITS
    return number if is_usable else None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
