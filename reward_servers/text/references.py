"""Samples' references in the libraries' shapes."""

from collections.abc import Sequence
from dataclasses import replace

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.text.scripts import spaced


def references_of(sample: Sample, name: str) -> tuple[str, ...]:
    """Return the sample's references.

    Raises:
        InputError: the sample has none.
    """
    if not sample.references:
        raise InputError(f"{name} compares with references, and this sample has none")
    return sample.references


def reference_streams(samples: Sequence[Sample], name: str) -> list[list[str | None]]:
    """Return references in sacrebleu's shape: all first ones, all second ones, …; None for missing ones.

    >>> reference_streams([Sample("", references=("a", "b")), Sample("", references=("c",))], "bleu")
    [['a', 'c'], ['b', None]]

    Raises:
        InputError: a sample has no reference.
    """
    most = max(len(references_of(sample, name)) for sample in samples)
    return [
        [sample.references[index] if index < len(sample.references) else None for sample in samples]
        for index in range(most)
    ]


def with_blanks(sample: Sample) -> Sample:
    """Return the sample with blanks around characters of scripts without blanks.

    >>> with_blanks(Sample("公园。", references=("去公园", "a park"))).references
    (' 去  公  园 ', 'a park')
    """
    return replace(sample, text=spaced(sample.text), references=tuple(map(spaced, sample.references)))


def printed_references(sample: Sample, name: str) -> str:
    """Return all references as Python's printed list.

    RL4LMs compares with this text, because the metric scripts of `datasets` 2.5.1 declare one string for the
    references, and convert the list to a string with brackets and quotes.

    >>> printed_references(Sample("", references=("a cat", "dogs")), "meteor_rl4lms_compat")
    "['a cat', 'dogs']"
    """
    return str(list(references_of(sample, name)))
