"""Answers that a reward or a metric finds in texts, for evaluations that count answers."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from reward_servers.reasons import RAISED, reason_of

logger = logging.getLogger(__name__)


def answers_of(grader: Any, texts: Sequence[str]) -> list[str | None] | None:
    """Call a grader's `answer` on each text; None if it has no such method.

    A text on which the method raises has no answer. A grader with a faster way for all texts has a method
    `answers_in`, too.
    """
    find_answer = getattr(grader, "answer", None)
    if not callable(find_answer):
        return None
    try:
        inspect.signature(find_answer).bind("")
    except (TypeError, ValueError):  # a method of the user's for something else
        return None
    if callable(find_together := getattr(grader, "answers_in", None)):
        return _together(find_together, texts)
    return [_answer(find_answer, text) for text in texts]


def _together(
    find_together: Callable[[Sequence[str]], Sequence[str | None]], texts: Sequence[str]
) -> list[str | None]:
    try:
        return list(find_together(texts))
    except Exception as error:  # as for a single text, but it costs the answers of all
        logger.warning("no answers of %d texts: %s", len(texts), reason_of(error))
        return [None] * len(texts)


def _answer(find_answer: Callable[[str], Any], text: str) -> str | None:
    try:
        answer = find_answer(text)
    except RAISED as error:
        logger.warning("no answer of a text: %s; the text: %.200r", reason_of(error), text)
        return None
    return None if answer is None else str(answer)
