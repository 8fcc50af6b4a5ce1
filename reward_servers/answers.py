"""The answers that a reward or a metric finds in texts, for evaluations that count them."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from reward_servers.reasons import RAISED, reason_of

logger = logging.getLogger(__name__)


def answers_of(grader: Any, texts: Sequence[str]) -> list[str | None] | None:
    """Call a grader's `answer` on each text; None if it has no such method of one text.

    A text on which the method raises has no answer.
    """
    find_answer = getattr(grader, "answer", None)
    if not callable(find_answer):
        return None
    try:
        inspect.signature(find_answer).bind("")
    except (TypeError, ValueError):  # a method of the user's for something else
        return None
    return [_answer(find_answer, text) for text in texts]


def _answer(find_answer: Callable[[str], Any], text: str) -> str | None:
    try:
        found = find_answer(text)
    except RAISED as error:
        logger.warning("no answer of a text: %s; the text: %.200r", reason_of(error), text)
        return None
    return None if found is None else str(found)
