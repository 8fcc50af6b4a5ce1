"""What a grader's model reads of a sample, put together by a template: text, prompt, turns, meta data."""

import re
from collections.abc import Mapping, Sequence

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.text.person_names import with_names

PLACE = re.compile(r"\{(\w+)\}")
TEXT_PLACES = {"text", "named_text"}


def places_of(template: str) -> set[str]:
    """
    >>> sorted(places_of("{prompt} => {text}"))
    ['prompt', 'text']
    """
    return set(PLACE.findall(template))


def filled(template: str, sample: Sample, turn_templates: Sequence[str] = ()) -> str:
    """The template with `{text}`, `{prompt}` and any key of the meta data in their places; other braces stay.

    `{turns}` are the meta data's `turns` on end, each in its template, which they take in turn.
    `{named_text}` is the text with the meta data's `names` in the place of PersonX and PersonY.

    >>> sample = Sample("Fine.", meta={"turns": ["Hi!", "Yes?", "Well?"]})
    >>> filled("{turns}A: {text}", sample, ("Q: {turn} ", "A: {turn} "))
    'Q: Hi! A: Yes? Q: Well? A: Fine.'

    Raises:
        InputError: the sample's meta data lacks a key.
    """
    return PLACE.sub(lambda found: _value(found[1], sample, turn_templates), template)


def _value(place: str, sample: Sample, turn_templates: Sequence[str]) -> str:
    if place in ("text", "prompt"):
        return sample.text if place == "text" else sample.prompt
    key = "names" if place == "named_text" else place
    if (found := sample.meta.get(key)) is None:
        there = ", ".join(map(str, sample.meta)) or "none"
        raise InputError(f"the template's {{{place}}} needs meta data '{key}', and this sample has: {there}")
    if place == "named_text" and isinstance(found, Mapping):
        return with_names(sample.text, found)
    if place == "turns" and isinstance(found, Sequence) and not isinstance(found, str):
        return "".join(
            turn_templates[number % len(turn_templates)].replace("{turn}", str(turn))
            for number, turn in enumerate(found)
        )
    if not isinstance(found, str | int | float):
        raise InputError(f"the template's {{{place}}} is meta data '{key}', and can't be {found!r:.100}")
    return str(found)
