"""Base of the tasks that read a data set. It loads rows and turns them into prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, field_validator

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import SPLITS, ColumnRead, Split
from services.data.tasks.columns import reads
from services.data.tasks.files import DataFiles, examples_of, expect_files, from_files, from_hub, read_ahead
from services.data.tasks.lazy import Place, PromptsOfRows

HIDDEN = "empty reference"  # RL4LMs' text if a data set does not publish its references


class DataSetTask(Settings):
    """Task over the rows of a data set; a subclass defines `of_row`, which turns a row into prompts.

    Example: a user's task whose rows are questions with an answer.

        class Questions(DataSetTask):
            task_name: ClassVar[str] = "questions"
            columns: ClassVar[tuple[str, ...]] = ("question", "answer")

            path: str = "someone/questions"

            def of_row(self, split, fields, where):
                return [Prompt("", text_at(fields, "question", where), (text_at(fields, "answer", where),))]
    """

    task_name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()  # columns that every row must have
    one_each: ClassVar[bool] = True  # whether every row makes exactly one prompt

    path: str = ""  # data set's name on the hub, unless data_files is set
    subset: str | None = None  # subset of the hub's data set
    revision: str | None = None  # revision of the hub's data set: a branch, tag or commit
    data_files: DataFiles | None = None  # files with the columns of the hub's data set
    max_size: int | None = Field(default=None, ge=1)  # prompts of each split; None: all
    streaming: bool = False  # make prompts when they are read; rows stay on the disk
    skip_empty: bool = False  # leave out rows with an empty prompt or reference, instead of rejecting them

    _files = field_validator("data_files", mode="before")(expect_files)

    def prompts(self, split: Split) -> Sequence[Prompt]:
        made = self._made(split, self.rows(split))
        return made if self.streaming else list(made)

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        check, by = partial(self._usable, split), self._dealt_by()
        rows = read_ahead(self.data_files, split, self.columns_of(split), check, by=by)
        return list(self._made(split, rows))

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        """Return the prompts of one row. Their ids are appended to `<task>/<split>/<row>`; "" adds nothing.

        Raises:
            InputError: a column is missing or holds a wrong value; the message begins with `where`.
        """
        raise NotImplementedError

    def rows(self, split: Split) -> Any:
        """Return the rows of one split: a `datasets.Dataset` or a list."""
        columns, by = self.columns_of(split), self._dealt_by()
        if self.data_files is not None:
            check = partial(self._usable, split)
            return from_files(self.data_files, split, columns, check, by=by)
        return from_hub(self.path, split, columns, subset=self.subset, revision=self.revision, by=by)

    def columns_read(self, split: Split) -> Sequence[ColumnRead]:
        """Return the columns. A column counts as read if `of_row` reads it."""
        rows = self.rows(split)
        if not isinstance(first := next(iter(rows), None), Mapping):
            return []
        row = _Noting(first)
        self.of_row(split, row, self._where(split, 0))
        return reads(dict.fromkeys(row.noted, "read"), examples_of(rows))

    def columns_of(self, split: Split) -> Sequence[str]:
        return self.columns

    def puts_together(self, split: Split) -> bool:
        """Tell whether rows with the same prompt become one prompt with all their references."""
        return False

    def _dealt_by(self) -> Callable[[Mapping[str, Any]], str] | None:
        """Return a key that keeps rows of one prompt in one split, if a file is divided into splits."""
        if not any(map(self.puts_together, SPLITS)):
            return None
        return lambda fields: next(
            (prompt.text for prompt in self.of_row("train", fields, self.task_name)), ""
        )

    def size(self, split: Split, available: int) -> int:
        """Return the number of prompts to take from the beginning."""
        return min(available, self.max_size or available)

    def _made(self, split: Split, rows: Sequence[Mapping[str, Any]]) -> PromptsOfRows:
        make = partial(self._numbered, split)
        if self.one_each and not self.skip_empty and not self.puts_together(split):
            return PromptsOfRows(rows, make, max_size=self.size(split, len(rows)))
        places = self._places(split, rows)
        return PromptsOfRows(rows, make, places, max_size=self.size(split, len(places)))

    def _places(self, split: Split, rows: Sequence[Mapping[str, Any]]) -> list[Place]:
        """Find the place of each prompt in one pass over the rows."""
        together = self.puts_together(split)
        by_text: dict[Any, list[tuple[int, int]]] = {}
        for row, fields in enumerate(rows):
            for which, prompt in enumerate(self._usable(split, fields, self._where(split, row))):
                by_text.setdefault(prompt.text if together else (row, which), []).append((row, which))
        return [tuple(pairs) for pairs in by_text.values()]

    def _numbered(self, split: Split, row: int, fields: Mapping[str, Any]) -> list[Prompt]:
        begin = f"{self.task_name}/{split}/{row}"
        return [
            replace(prompt, id=f"{begin}/{prompt.id}" if prompt.id else begin)
            for prompt in self._usable(split, fields, self._where(split, row))
        ]

    def _where(self, split: Split, row: int) -> str:
        return f"task={self.task_name}, {split} row {row}"

    def _usable(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        """Return the row's prompts; reject an empty one, or skip it with `skip_empty`."""
        prompts, usable = self.of_row(split, fields, where), []
        for prompt in prompts:
            empty = [] if prompt.text.strip() else ["prompt"]
            empty += [f"reference {n}" for n, text in enumerate(prompt.references, 1) if not text.strip()]
            if not empty:
                usable.append(prompt)
            elif not self.skip_empty:
                raise InputError(
                    f"{where}: the {empty[0]} is empty; task.skip_empty=true leaves such rows out"
                )
        return usable


class _Noting(dict[str, Any]):
    """Row that records which of its columns are read."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.noted: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.noted |= {name} & self.keys()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.noted |= {name} & self.keys()
        return super().get(name, default)
