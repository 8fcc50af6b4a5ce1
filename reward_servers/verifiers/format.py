"""Check a text's form: a pattern, tags, JSON. Each check may take forever on a malicious text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from contracts.conversations.thoughts import behind_thought

FENCE = re.compile(r"\A\s*```[^\n]*\n(.*)```\s*\Z", re.DOTALL)


def perform(payload: Mapping[str, Any]) -> list[bool]:
    """Return whether the text obeys each of the rules.

    A text that begins inside a thought may obey a rule with or without the thought's opening mark. JSON
    stands after the thought.
    """
    texts, kept = payload["texts"], []
    if payload["pattern"] is not None:
        kept.append(any(re.fullmatch(payload["pattern"], text, re.DOTALL) for text in texts))
    if payload["tags"]:
        kept.append(any(has_tags(text, payload["tags"], payload["nothing_else"]) for text in texts))
    if payload["schema"] is not None:
        answer = behind_thought(texts[-1])
        kept.append(answer is not None and fits(answer, payload["schema"], payload["json_tag"]))
    return kept


def has_tags(text: str, tags: Sequence[str], nothing_else: bool) -> bool:
    """Return whether each pair of tags occurs exactly once, closed, and in this order.

    >>> texts = ("<a>1</a> so <b>2</b>", "<b>2</b><a>1</a>", "<a>1<b>2</b>", "<a><b>2</b></a>")
    >>> [has_tags(text, ["a", "b"], nothing_else=False) for text in texts]
    [True, False, False, False]
    """
    place, between = 0, []
    for tag in tags:
        begin, end = f"<{tag}>", f"</{tag}>"
        if text.count(begin) != 1 or text.count(end) != 1:
            return False
        first, last = text.index(begin), text.index(end)
        if not place <= first < last:
            return False
        between.append(text[place:first])
        place = last + len(end)
    return not nothing_else or not "".join([*between, text[place:]]).strip()


def fits(text: str, schema: Any, tag: str | None) -> bool:
    """Return whether the text, or its part between the last tags, is JSON that fits the schema."""
    if tag is not None:
        _, begin, rest = text.rpartition(f"<{tag}>")
        text, end, _ = rest.partition(f"</{tag}>")
        if not (begin and end):
            return False
    fenced = FENCE.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text, parse_constant=_refuse)
        return bool(jsonschema.validators.validator_for(schema)(schema).is_valid(value))
    except (ValueError, RecursionError):
        return False


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
