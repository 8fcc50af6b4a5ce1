"""Make prompts from rows when they are read, so that even large data sets stay on the disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from contracts.rollout import Prompt

MakePrompts = Callable[[int, Mapping[str, Any]], list[Prompt]]
Place = tuple[tuple[int, int], ...]  # (row, index among its prompts) for each part of a prompt


class PromptsOfRows(Sequence[Prompt]):
    """Sequence of prompts. `make(row, fields)` returns a row's prompts, `places` locates each prompt.

    Without places every row makes exactly one prompt, and nothing is stored. A prompt with several
    places is the prompt of the first place, with the references of all places.

    Example: three sentences about two sets of words; the last two are about the same set.

        PromptsOfRows(rows, make, places=[((0, 0),), ((1, 0), (2, 0))])
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        make: MakePrompts,
        places: Sequence[Place] | None = None,
        max_size: int | None = None,
    ) -> None:
        self._rows, self._make, self._places = rows, make, places
        count = len(rows if places is None else places)
        self._count = count if max_size is None else min(count, max_size)
        self._last: tuple[int, list[Prompt]] = (-1, [])  # so that a row with several prompts is read once

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Prompt]:
        if self._places is not None:
            yield from map(self._at, range(self._count))
            return
        for row, fields in zip(range(self._count), self._rows, strict=False):  # faster than row by row
            yield self._make(row, fields)[0]

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        where = range(self._count)[index]
        return self._at(where) if isinstance(where, int) else [self._at(number) for number in where]

    def _at(self, index: int) -> Prompt:
        if self._places is None:
            return self._made(index)[0]
        parts = [self._made(row)[which] for row, which in self._places[index]]
        if len(parts) == 1:
            return parts[0]
        return replace(parts[0], references=tuple(text for part in parts for text in part.references))

    def _made(self, row: int) -> list[Prompt]:
        if self._last[0] != row:
            self._last = (row, self._make(row, self._rows[row]))
        return self._last[1]
