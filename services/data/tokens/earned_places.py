"""Rewards of a rollout's tokens, from a score's values at places of its text.

a number            the text's last token, which gets all scores without places
a list by token     the tokens of all graded answers, one after the other
a list by turn      each answer's last token
spans               the token that completes a span's last character
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from contracts.errors import RunError
from contracts.rollout import Rollout, Turn
from contracts.scores import Grade, Score, Span

Places = Callable[[Turn, Sequence[int]], list[int]]  # finds the tokens of characters in a turn's text
TokenRewards = dict[int, list[float]]  # by turn


def at_end(score: Score) -> float:
    """Return the reward at the end of the text."""
    if not score.earned:
        return score.total or 0.0
    return sum(grade.total or 0.0 for grade in score.earned if grade.unit == "text")


def of_grades(scores: Sequence[Score]) -> dict[str, Any]:
    """Return a rollout's fields from its scores: means of values, and comments, one on each line."""
    values: dict[str, list[float]] = {}
    comments: list[tuple[str, str]] = []
    for score in scores:
        for label, grade in score.grades.items():
            comments += [(label, grade.comment)] if grade.comment else []
            for name, value in grade.values.items():
                values.setdefault(f"{label}/{name}", []).append(value)
    several = len({label for label, _ in comments}) > 1
    lines = [f"{label}: {comment}" if several else comment for label, comment in comments]
    return {
        "reward_values": {name: fmean(numbers) for name, numbers in values.items()},
        "comment": "\n".join(lines),
    }


def add_earned(
    by_token: TokenRewards,
    rollout: Rollout,
    judged: Sequence[int],
    earned: Sequence[Grade],
    places: Places | None,
) -> None:
    """Add a sample's scores at places to the rewards of the rollout's tokens.

    Args:
        judged: turns whose answers make up the sample's text, one on each line; some may be empty.

    Raises:
        RunError: there are spans, but no finder of their tokens.
    """
    turns = {index: rollout.turns[index] for index in judged if rollout.turns[index].num_tokens}
    if not turns or all(grade.unit == "text" for grade in earned):
        return
    for index, turn in turns.items():
        by_token.setdefault(index, [0.0] * turn.num_tokens)
    for grade in earned:
        scores: Any = grade.score
        if grade.unit == "span":
            if places is None:
                raise RunError("a reward scores spans of texts, but no tokenizer can find their tokens")
            _add_spans(by_token, [rollout.turns[index] for index in judged], judged, scores, places)
        elif grade.unit == "turn":
            for index, score in zip(turns, scores, strict=True):
                by_token[index][-1] += score
        elif grade.unit == "token":
            everywhere = [(index, token) for index, turn in turns.items() for token in range(turn.num_tokens)]
            for (index, token), score in zip(everywhere, scores, strict=True):
                by_token[index][token] += score


def _add_spans(
    by_token: TokenRewards,
    judged: Sequence[Turn],
    indices: Sequence[int],
    spans: Sequence[Span],
    places: Places,
) -> None:
    begins = list(accumulate((len(turn.text) + 1 for turn in judged[:-1]), initial=0))
    of_turn: dict[int, list[tuple[int, float]]] = {}
    for _, end, score in spans:
        line = bisect_right(begins, end - 1) - 1
        wrote = next(n for n in (*range(line, -1, -1), *range(line, len(judged))) if judged[n].num_tokens)
        last = len(judged[wrote].text) - 1  # without the line end
        of_turn.setdefault(wrote, []).append((min(end - 1 - begins[wrote], last), score))
    for number, earned in of_turn.items():
        tokens = places(judged[number], [character for character, _ in earned])
        for token, (_, score) in zip(tokens, earned, strict=True):
            by_token[indices[number]][token] += score
