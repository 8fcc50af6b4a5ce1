"""Needs of rewards and metrics: references, and keys of the meta data."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.scores import Sample


def has_reference(references: Sequence[str]) -> bool:
    """Return whether any reference is not blank.

    >>> has_reference(("", "a")), has_reference((" ",)), has_reference(())
    (True, False, False)
    """
    return any(reference.strip() for reference in references)


def meta_keys(component: Any) -> tuple[str, ...]:
    """Return the meta data keys that a component declares; "a|b" is either of two."""
    keys = getattr(component, "needs_meta", ())
    return (keys,) if isinstance(keys, str) else tuple(keys)


def missing_keys(needed: Sequence[str], meta: Mapping[str, Any]) -> list[str]:
    """Return the needed keys that the meta data lack; "a|b" needs one of them.

    >>> missing_keys(("a|b", "c|d", "e"), {"b": 1, "c": None})
    ['c or d', 'e']
    """
    return [
        keys.replace("|", " or ") for keys in needed if all(meta.get(key) is None for key in keys.split("|"))
    ]


def shown_keys(meta: Mapping[str, Any]) -> str:
    """Return the keys of the meta data as text; a key without a value is marked.

    >>> shown_keys({"answer": None, "topic": "sums"}), shown_keys({})
    ('answer (null), topic', 'none')
    """
    return ", ".join(f"{key} (null)" if value is None else str(key) for key, value in meta.items()) or "none"


def lacking(component: Any, name: str, sample: Sample) -> str | None:
    """Name the component's references or meta data that the sample lacks; None if nothing is missing."""
    if getattr(component, "needs_references", False) and not has_reference(sample.references):
        shown = "only empty ones" if sample.references else "none"
        return f"{name} compares with references, and this sample has {shown}"
    if missing := missing_keys(meta_keys(component), sample.meta):
        return f"{name} needs meta data {', '.join(missing)}, and this sample has: {shown_keys(sample.meta)}"
    return None
