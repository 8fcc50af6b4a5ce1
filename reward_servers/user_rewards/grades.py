"""Check one sample's score: a number, numbers by token or turn, spans, or a record.

    0.5                                    for the whole text
    [0.0, 0.5, 1.0]                        for each token
    [(0, 4, 0.5), (5, 9, 1.0)]             for spans of characters
    {"score": any of these, …}, Grade(…)   a record, with values and a comment

All are JSON; a span is a list of three.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

from contracts.errors import RewardError
from contracts.scores import Grade, Sample, Span

SHOWN = 80  # characters of the returned value in a message
KEYS = (
    "score",
    "by",
    "values",
    "comment",
    "error",
)  # keys of a record as JSON; `error` as `whetstone serve` has it
NAME = re.compile(r"[A-Za-z0-9_\-./ ]{1,64}")  # MLflow takes this as a part of a metric's name
MOST_VALUES = 64
LONGEST = 10_000  # characters of a comment, which every rollout carries
UNITS = {"token": "the model generated {} tokens", "turn": "the model gave {} answers"}


class Misshapen(RewardError):
    """A return value that is wrong for any samples, a fault of the grader."""


def grade_of(value: Any, where: str) -> float | Grade | None:
    """Return a sample's score: a plain number as a float, anything more as a grade, None as None.

    A comment is cut at 10,000 characters.

    >>> grade_of(1, "score()"), grade_of([0, 1], "score()"), grade_of({"score": 1}, "score()")
    (1.0, Grade(score=(0.0, 1.0), values={}, comment='', by='token'), 1.0)

    Raises:
        Misshapen: the value has another kind.
        RewardError: a number is NaN or infinite, or a record gives a reason for no score.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        value = _of_mapping(value, where)
    if not isinstance(value, Grade):
        alone = _score(value, where)
        return Grade(alone) if isinstance(alone, tuple) else alone
    if not isinstance(value.comment, str) or not isinstance(value.values, Mapping):
        raise Misshapen(f"{where} returned {shown(value)}; expected values by name, and a text as comment")
    if not isinstance(value.by, str) or value.by not in UNITS:
        raise Misshapen(f"{where} returned by={value.by!r}; expected 'token' or 'turn'")
    score = None if value.score is None else _score(value.score, where)
    grade = Grade(score, _values(value.values, where), _readable(value.comment), value.by)
    is_plain = not (isinstance(score, tuple) or grade.values or grade.comment)
    return score if is_plain else grade  # type: ignore[return-value]


def misfit(value: float | Grade | None, sample: Sample) -> str | None:
    """Return the fault of a score's places for the sample; None if all fit.

    >>> misfit(Grade([1.0, 0.0]), Sample("a b c", num_tokens=3))
    'got 2 scores of tokens, and the model generated 3 tokens; expected one for each, sample.num_tokens'
    """
    if not isinstance(value, Grade) or not isinstance(value.score, Sequence):
        return None
    if value.unit == "span":
        length = len(sample.text)
        for start, end, _ in value.score:  # type: ignore[misc]
            if not 0 <= start < end <= length:
                return (
                    f"got a span of characters {start} to {end}, and the text has {length}; expected "
                    f"(start, end, score) with 0 <= start < end <= {length}"
                )
        return None
    if sample.num_tokens is None:  # the text comes from a file, or from elsewhere
        return None
    count, what = sample.num_tokens, "sample.num_tokens"
    if value.unit == "turn":
        count, what = max(1, len(sample.turns)), "len(sample.turns), or a single one"
    if len(value.score) == count:
        return None
    there = UNITS[value.by].format(count)
    return f"got {len(value.score)} scores of {value.unit}s, and {there}; expected one for each, {what}"


def finite(value: Any, where: str) -> float:
    """Return the value as a float; a boolean is 0 or 1."""
    if value is None:
        raise RewardError(f"{where} returned None, which is no number")
    has_parts = tuple(getattr(value, "shape", ())) != ()
    if has_parts or isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise Misshapen(f"{where} returned {shown(value)}, which is no number")
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"{where} returned {number}, which is no finite number")
    return number


def shown(value: Any) -> str:
    """Return the value's type, and the part of the value that fits a line."""
    if value is None or isinstance(value, type):
        return repr(value)
    text = " ".join(repr(value).split())
    return f"{kind(value)} {text if len(text) <= SHOWN else text[:SHOWN] + '…'}"


def kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _of_mapping(value: Mapping[Any, Any], where: str) -> Grade:
    if "score" not in value or (unknown := [key for key in value if key not in KEYS]):
        more = "" if "score" not in value else f", with the unknown key {unknown[0]!r}"
        raise Misshapen(
            f"{where} returned {shown(value)}{more}; expected a number, or a record "
            '{"score": …, "values": {name: number}, "comment": "…"}'
        )
    if value.get("error"):
        raise RewardError(str(value["error"]))
    return Grade(
        value["score"],
        {} if value.get("values") is None else value["values"],
        "" if value.get("comment") is None else value["comment"],
        "token" if value.get("by") is None else value["by"],
    )


def _score(value: Any, where: str) -> float | tuple[float, ...] | tuple[Span, ...]:
    """Return a number, numbers, or spans."""
    value = value.tolist() if len(getattr(value, "shape", ())) == 1 else value
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        return finite(value, where)
    if value and all(_is_span(element) for element in value):
        return tuple(
            (_place(start, where), _place(end, where), finite(score, where)) for start, end, score in value
        )
    if (wrong := next((element for element in value if _is_several(element)), None)) is not None:
        raise Misshapen(
            f"{where} returned {shown(value)}, in which {shown(wrong)} is neither a number nor a span; "
            "expected a number for each token, or spans (start, end, score)"
        )
    return tuple(finite(number, where) for number in value)


def _is_span(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == 3


def _is_several(value: Any) -> bool:
    """Return whether a value holds others; a zero-dimensional array is a number."""
    return isinstance(value, Iterable) and getattr(value, "shape", None) != ()


def _place(value: Any, where: str) -> int:
    number = finite(value, where)
    if not number.is_integer():
        raise Misshapen(f"{where} returned a span that begins or ends at {value}; expected a whole number")
    return int(number)


def _readable(comment: str) -> str:
    """Return a comment of at most `LONGEST` characters, with halves of surrogate pairs escaped.

    A program's output, decoded in parts, can have such halves. JSON in UTF-8 and tokenizers reject them.
    """
    whole = comment[: LONGEST + 1].encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= LONGEST else whole[: LONGEST - 1] + "…"


def _values(values: Mapping[Any, Any], where: str) -> dict[str, float]:
    if len(values) > MOST_VALUES:
        raise Misshapen(f"{where} returned {len(values)} values of a text; expected at most {MOST_VALUES}")
    for name in values:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise Misshapen(
                f"{where} returned a value named {name!r:.100}; expected up to 64 letters, digits, blanks or "
                "any of _ - . /"
            )
    return {name: finite(value, f"{where}, value '{name}',") for name, value in values.items()}
