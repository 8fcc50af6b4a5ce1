"""The references of samples, as the counting libraries want them."""

from collections.abc import Sequence

from contracts.errors import InputError
from contracts.scores import Sample


def references_of(sample: Sample, name: str) -> tuple[str, ...]:
    """The sample's references.

    Raises:
        InputError: it has none.
    """
    if not sample.references:
        raise InputError(f"{name} compares with references, and this sample has none")
    return sample.references


def reference_streams(samples: Sequence[Sample], name: str) -> list[list[str | None]]:
    """sacrebleu's shape: first references, second ones, …; None where a sample has fewer.

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


def printed_references(sample: Sample, name: str) -> str:
    """All references as Python prints a list of them.

    That is what RL4LMs compares with: the metric scripts of `datasets` 2.5.1 declare one string for the
    references, and turn the list that they are given into it, brackets and quotes included.

    >>> printed_references(Sample("", references=("a cat", "dogs")), "meteor_rl4lms_compat")
    "['a cat', 'dogs']"
    """
    return str(list(references_of(sample, name)))
