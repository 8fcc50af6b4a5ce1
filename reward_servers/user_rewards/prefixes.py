"""Rewards of the text so far; each word or line earns its gain at its end.

    "3 7 5"  ─▶  "3", "3 7", "3 7 5"  ─▶  scores 0.2, 0.5, 0.4  ─▶  spans earn +0.2, +0.3, -0.1

The gains add up to the score of the whole text, so the best texts stay the best. The scores of beginnings are
a potential (Ng, Harada and Russell 1999, "Policy invariance under reward transformations").
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

from contracts.errors import InputError
from contracts.scores import GROUPS, Grade, PrefixUnit, Sample
from reward_servers.user_rewards.grades import Misshapen
from reward_servers.user_rewards.returned import scores_of
from reward_servers.user_rewards.watched import with_text

ENDS = {"words": re.compile(r"\S+"), "lines": re.compile(r"[^\n]+")}


def prefix_unit(grader: Any) -> PrefixUnit | None:
    """Return the unit of a reward of the text so far; None: it sees whole texts.

    Raises:
        InputError: its `scores` has another value.
    """
    units = get_args(PrefixUnit)
    unit = getattr(grader, "scores", None)
    if unit in (None, "samples", GROUPS):
        return None
    if unit not in units:
        expected = ", ".join(repr(name) for name in ("samples", GROUPS, *units))
        raise InputError(f"{type(grader).__name__}.scores: got {unit!r:.100}; expected one of {expected}")
    return unit  # type: ignore[no-any-return]


def ends(text: str, unit: PrefixUnit) -> list[int]:
    """Return the places after each word or line; the last one is the text's end.

    >>> ends("3 7  5 ", "words"), ends("a b\\nc\\n", "lines"), ends("", "words")
    ([1, 3, 7], [3, 6], [0])
    """
    places = [match.end() for match in ENDS[unit].finditer(text)]
    return [*places[:-1], len(text)]


def beginnings(samples: Sequence[Sample], unit: PrefixUnit) -> list[Sample]:
    """Return all beginnings of each text as samples."""
    return [with_text(sample, sample.text[:end]) for sample in samples for end in ends(sample.text, unit)]


def gains(returned: Any, samples: Sequence[Sample], unit: PrefixUnit) -> list[Grade | None]:
    """Return by how much each word or line raises its text's score, from the scores of all beginnings.

    A beginning without a score gains nothing. Values and comment are the whole text's.

    Raises:
        RewardError: like `scores_of`, or a beginning's score is itself by places.
    """
    places = [ends(sample.text, unit) for sample in samples]
    scores = scores_of(returned, sum(map(len, places)))
    grades: list[Grade | None] = []
    for text_places in places:
        of_text, scores = scores[: len(text_places)], scores[len(text_places) :]
        grades.append(_gain(of_text, text_places))
    return grades


def by_prefix(call: Callable[[Sequence[Sample]], Any], unit: PrefixUnit) -> Callable[[Sequence[Sample]], Any]:
    """Return a call that scores whole texts by the gains of their beginnings."""
    return lambda samples: gains(call(beginnings(samples, unit)), samples, unit)


def awaited_by_prefix(
    call: Callable[[Sequence[Sample]], Any], unit: PrefixUnit
) -> Callable[[Sequence[Sample]], Any]:
    """Return the equivalent of `by_prefix` for a coroutine."""

    async def awaited(samples: Sequence[Sample]) -> list[Grade | None]:
        return gains(await call(beginnings(samples, unit)), samples, unit)

    return awaited


def _gain(scores: Sequence[float | Grade | None], places: Sequence[int]) -> Grade | None:
    last = scores[-1]
    grade = last if isinstance(last, Grade) else Grade(last)
    totals = [0.0]
    for score in scores:
        number = score.score if isinstance(score, Grade) else score
        if isinstance(number, Sequence):
            raise Misshapen(
                "score() returned a list for the text so far; expected a number, since its gains are what "
                'tokens earn. Remove scores = "words" or "lines" to score tokens yourself'
            )
        totals.append(totals[-1] if number is None else number)
    if all(score is None for score in scores):
        return None
    if places == [0]:  # an empty text has no place for the gain
        return replace(grade, score=totals[-1])
    starts = [0, *places[:-1]]
    earned = (after - before for before, after in pairwise(totals))
    return replace(grade, score=tuple(zip(starts, places, earned, strict=True)))
