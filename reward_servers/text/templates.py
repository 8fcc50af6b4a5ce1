"""Build a grader model's input by a template from a sample's text, prompt, turns and meta data."""

import re
from collections.abc import Mapping, Sequence

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.text.person_names import with_names

PLACE = re.compile(r"\{(\w+)\}")
TEXT_PLACES = {"text", "named_text"}


def places_of(template: str) -> set[str]:
    """Return the names of a template's placeholders.

    >>> sorted(places_of("{prompt} => {text}"))
    ['prompt', 'text']
    """
    return set(PLACE.findall(template))


def filled(template: str, sample: Sample, turn_templates: Sequence[str] = ()) -> str:
    """Fill a template with `{text}`, `{prompt}` and any key of the meta data; other braces stay.

    `{turns}` joins the meta data's `turns`, each in the next of the turn templates, in rotation.
    `{named_text}` is the text with the meta data's `names` instead of PersonX and PersonY.

    >>> sample = Sample("Fine.", meta={"turns": ["Hi!", "Yes?", "Well?"]})
    >>> filled("{turns}A: {text}", sample, ("Q: {turn} ", "A: {turn} "))
    'Q: Hi! A: Yes? Q: Well? A: Fine.'

    Raises:
        InputError: the sample's meta data lacks a key.
    """
    return PLACE.sub(lambda match: _value(match[1], sample, turn_templates), template)


def _value(place: str, sample: Sample, turn_templates: Sequence[str]) -> str:
    if place in ("text", "prompt"):
        return sample.text if place == "text" else sample.prompt
    key = "names" if place == "named_text" else place
    if (value := sample.meta.get(key)) is None:
        there = ", ".join(map(str, sample.meta)) or "none"
        raise InputError(f"the template's {{{place}}} needs meta data '{key}', and this sample has: {there}")
    if place == "named_text" and isinstance(value, Mapping):
        return with_names(sample.text, value)
    if place == "turns" and isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(
            turn_templates[number % len(turn_templates)].replace("{turn}", str(turn))
            for number, turn in enumerate(value)
        )
    if not isinstance(value, str | int | float):
        raise InputError(
            f"the template's {{{place}}} reads meta data '{key}'; got {value!r:.100}; expected a text or a "
            "number"
        )
    return str(value)
