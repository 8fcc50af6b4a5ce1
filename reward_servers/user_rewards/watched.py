"""Samples that record whether a grader read their group.

Such a grader's score depends on the batch's other samples, so it must not be cached by text.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contracts.scores import Sample

SLOT: Any = vars(Sample)["group"]  # the descriptor that holds a sample's group


class Watch:
    """Record whether a grader read the group of any watched sample.

    >>> watch = Watch()
    >>> (sample,) = watch.over([Sample("a", group="train/1")])
    >>> sample.text, watch.was_read, sample.group, watch.was_read
    ('a', False, 'train/1', True)
    """

    def __init__(self) -> None:
        self.was_read = False

    def over(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the same samples, watched."""
        return [_watched(sample, self) for sample in samples]


def with_text(sample: Sample, text: str) -> Sample:
    """Return an equally watched sample with another text, without a read of the group."""
    made = replace(_plain(sample), text=text, num_tokens=None, turns=())
    watch = getattr(sample, "_watch", None)
    return made if watch is None else _watched(made, watch)


class _Watched(Sample):
    """A sample that reports each read of its group; a pickled or replaced copy counts as a read."""

    __slots__ = ("_watch",)
    _watch: Watch

    @property
    def group(self) -> str:  # type: ignore[override]
        watch = getattr(self, "_watch", None)  # a copy has none
        if watch is not None:
            watch.was_read = True
        group: str = SLOT.__get__(self)
        return group

    @group.setter
    def group(self, value: str) -> None:
        SLOT.__set__(self, value)

    # Printing and comparing don't count as a read: `list.index` and `in` compare, too.
    def __repr__(self) -> str:
        return repr(_plain(self))

    def __eq__(self, other: object) -> bool:
        return _plain(self) == _plain(other) if isinstance(other, Sample) else NotImplemented

    def __hash__(self) -> int:
        return hash(_plain(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Sample, _fields(self, self.group)


_Watched.__name__ = _Watched.__qualname__ = "Sample"  # for users' error messages


def _plain(sample: Sample) -> Sample:
    return Sample(*_fields(sample, SLOT.__get__(sample)))


def _fields(sample: Sample, group: str) -> tuple[Any, ...]:
    return (
        *(sample.text, sample.prompt, sample.references, sample.meta),
        *(group, sample.num_tokens, sample.opened, sample.turns),
    )


def _watched(sample: Sample, watch: Watch) -> Sample:
    made = _Watched(*_fields(sample, sample.group))
    object.__setattr__(made, "_watch", watch)
    return made
