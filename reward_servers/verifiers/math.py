"""Compare a text's mathematical answer with the right ones.

text ─▶ the part with the answer, and the answer in it ─▶ parsed whole ─▶ equal in form and number?
        (reward_servers/answers/answer.py)          (expressions.py)      (equality.py)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from reward_servers.answers.answer import (
    TAG,
    Answer,
    answer_in,
    behind_hashes,
    boxed,
    last_number,
    reference_value,
    response_part,
)
from reward_servers.answers.choices import choice_of
from reward_servers.verifiers.equality import elements_of, same, words_of
from reward_servers.verifiers.expressions import MOST_CHARACTERS, parsed, tidy


def perform(payload: Mapping[str, Any]) -> Any:
    """Return whether the text's answer is right; with `find`, return the answer's text, or None."""
    where, choices = payload["extract"], payload["choices"]
    part = response_part(payload["text"])
    if not part:
        return None if payload.get("find") else False
    if payload.get("find"):
        answer = answer_of(part, where, choices)
        if (
            answer
            and answer.is_guess
            and parsed(tidy(answer.value)) is None
            and not TAG.search(payload["text"])
        ):
            return None  # words that state nothing
        return shown(answer, where)
    return any(_is_right(part, right, where, choices) for right in payload["right"])


def answer_of(part: str, where: str, choices: Sequence[str] = (), count: int = 1) -> Answer | None:
    """Return the answer in a part of a response, or None.

    Args:
        count: number of values in the right answer.
    """
    value: str | None
    match where:
        case "boxed":
            value = boxed(part, count)
        case "last_number":
            value = last_number(part)
        case "hashes":
            value = behind_hashes(part)
        case "choice":
            value = choice_of(part, choices)
        case _:
            return answer_in(part, count)
    return None if value is None else Answer(value, value)


def _is_right(part: str, reference: str, where: str, choices: Sequence[str]) -> bool:
    if where == "choice":
        chosen = choice_of(part, choices)
        return chosen is not None and chosen == choice_of(response_part(reference) or reference, choices)
    right = reference_value(reference)
    answer = answer_of(part, where, choices, len(elements_of(tidy(right))))
    if answer is None:
        return False
    return same(right, answer.value) or _begins_with(answer.words, right)


def _begins_with(answer: str, right: str) -> bool:
    """Return whether words begin with the right ones; "Tuesday, since …" answers "Tuesday"."""
    if parsed(tidy(right)) is not None and not right.strip().isalpha():
        return False
    words, of_right = words_of(answer).split(), words_of(right).split()
    return len(right.strip()) > 1 and bool(of_right) and words[: len(of_right)] == of_right


def shown(answer: Answer | None, where: str) -> str | None:
    """Return the common text of equal answers; 0.5 and 1/2 are "1/2"."""
    if answer is None or where == "choice":
        return None if answer is None else answer.value
    text = tidy(answer.value)
    parts = [_shown(part) for part in elements_of(text)] if text[:1] not in ("(", "[") else [_shown(text)]
    return ", ".join(sorted(part for part in parts if part)) or None


def _shown(text: str) -> str:
    value = parsed(text.rpartition("=")[2])
    if value is None:
        return words_of(text) if len(text) <= MOST_CHARACTERS else ""
    if not isinstance(value.value, sympy.Expr):
        return str(value.value)
    simple = sympy.simplify(value.value)
    return str(sympy.nsimplify(simple, rational=True) if simple.is_number else simple)


def prepare() -> None:
    """Warm up ANTLR and sympy, which build tables at first use."""
    for right, text in (("1/2", r"\boxed{\frac{1}{2} + \sqrt{3} x^{2}}"), ("x^2", "The answer is 1,234.5")):
        perform({"text": text, "extract": "any", "choices": (), "right": [right]})
