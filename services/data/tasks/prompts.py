"""Your own prompts, texts or conversations: JSON Lines, CSV or Parquet files, or a data set on the hub."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from contracts.conversations.messages import MESSAGES, RESPONSE, TOOLS
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings, Strings
from services.data.tasks.asked import prompt_at
from services.data.tasks.base import ColumnRead, Split
from services.data.tasks.cells import holds_nothing
from services.data.tasks.columns import BESIDE_INSTRUCTIONS, Columns, columns_of, named, reads
from services.data.tasks.files import (
    DataFiles,
    FewByRow,
    examples_of,
    expect_files,
    from_files,
    from_hub,
    read_ahead,
)
from services.data.tasks.lazy import PromptsOfRows
from services.data.tasks.rows import value_at


class Prompts(Settings):
    default_reward: ClassVar[None] = None
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    data_files: DataFiles | None = None  # a folder, a file, or a mapping of splits to files
    path: str | None = None  # data set's name on the hub, instead of data_files
    subset: str | None = None  # subset of the hub's data set, such as "3.0.0" of cnn_dailymail
    revision: str | None = None  # revision of the hub's data set: a branch, tag or commit
    # Texts or lists of messages. None: prompt, messages, … of columns.py
    prompt_column: str | None = None
    # Texts or lists of texts. None: answer, solution, … if one of these exists, otherwise a conversation's
    # last answer; "": no references
    references_column: str | None = None
    input_column: str | None = None  # text after an instruction. None: its input and context; "": none
    system_column: str | None = None  # a system message before the prompt. None: system; "": none
    meta_columns: Strings = ()  # further columns for rewards; a.b is inside of column a
    weight_column: str | None = None  # column of weights for rollout.priority_scale; None: all are 1
    limit: int | None = Field(default=None, ge=1)  # rows of each split; None: all
    streaming: bool = False  # make prompts when they are read; rows stay on the disk

    _files = field_validator("data_files", mode="before")(expect_files)

    @field_validator("meta_columns", mode="after")
    @classmethod
    def _no_second_conversation(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if reserved := {MESSAGES, RESPONSE, TOOLS} & set(value):
            raise ValueError(
                f"{reserved.pop()} holds a prompt's conversation; expected other columns, and "
                f"task.prompt_column=messages for conversations"
            )
        return value

    @model_validator(mode="after")
    def _one_source(self) -> "Prompts":
        if (self.data_files is None) == (self.path is None):
            raise ValueError(
                "expected either task.data_files= (files of your own) or task.path= (a hub name)"
            )
        return self

    def prompts(self, split: Split) -> Sequence[Prompt]:
        rows = self.rows(split)
        columns = self._columns(examples_of(rows), f"task=prompts, {split}")
        made = PromptsOfRows(rows, partial(self._of_row, columns, split), max_size=self.limit)
        return made if self.streaming else list(made)

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        rows = read_ahead(self.data_files, split, self._named, self._check, by=self._dealt_by)
        there: dict[str, Any] = {}
        for row in rows:
            there |= {name: value for name, value in row.items() if holds_nothing(there.get(name))}
        columns = self._columns(there, f"task=prompts, {split}") if rows else Columns("")
        return list(PromptsOfRows(rows, partial(self._of_row, columns, split), max_size=self.limit))

    def columns_read(self, split: Split) -> Sequence[ColumnRead]:
        examples = examples_of(self.rows(split))
        columns = self._columns(examples, "task=prompts")
        roles = dict(columns.roles)
        for names, role in ((self.meta_columns, "meta data of rewards"), ([self.weight_column], "weight")):
            roles |= {name: ", ".join(filter(None, [roles.get(name), role])) for name in names if name}
        hints = {name: f"task.references_column={name} makes it the reference" for name in columns.unsure}
        if self.input_column is None:
            behind = named(examples, BESIDE_INSTRUCTIONS)
            hints |= {name: f"task.input_column={name} puts it after the prompt" for name in behind}
        return reads(roles, examples, hints)

    def rows(self, split: Split) -> Any:
        """Return the rows of one split, one for each prompt: `FileRows` or a `datasets.Dataset`."""
        if self.data_files is not None:
            return from_files(self.data_files, split, self._named, self._check, by=self._dealt_by)
        of_hub = {"subset": self.subset, "revision": self.revision}
        return from_hub(str(self.path), split, self._named, **of_hub, by=self._dealt_by)

    @property
    def _dealt_by(self) -> FewByRow | None:
        """Return a key that keeps rows of one prompt in one split; None if rows are streamed."""
        return None if self.streaming else FewByRow(self._text)

    def _text(self, row: Mapping[str, Any]) -> str:
        try:
            return self._prompt(self._columns(row, ""), row, "").text
        except InputError:  # reading rejects this row
            return ""

    @property
    def _named(self) -> list[str]:
        names = [self.prompt_column, self.references_column, self.input_column, self.system_column]
        names += [*self.meta_columns, self.weight_column]
        return [column for column in names if column]

    def _columns(self, there: Mapping[str, Any], where: str) -> Columns:
        names = self.prompt_column, self.references_column
        around = self.system_column, self.input_column
        columns = columns_of(list(there), *names, where, examples=there, system=around[0], beside=around[1])
        return replace(columns, is_good=None) if columns.is_good in self.meta_columns else columns

    def _check(self, row: Mapping[str, Any], where: str) -> None:
        """Reject a wrong row of a file, which may leave out empty columns."""
        self._prompt(self._columns(row, where), row, where)

    def _of_row(self, columns: Columns, split: Split, row: int, fields: Mapping[str, Any]) -> list[Prompt]:
        where = f"task=prompts, {split} row {row}"
        prompt = self._prompt(columns, fields, where)
        meta = {column: value_at(fields, column) for column in self.meta_columns} | dict(prompt.meta)
        ident = f"prompts/{split}/{row}"
        return [replace(prompt, id=ident, meta=meta, weight=self._weight(fields, where))]

    def _prompt(self, columns: Columns, fields: Mapping[str, Any], where: str) -> Prompt:
        return prompt_at(fields, columns, where, guessed=self.references_column is None)

    def _weight(self, fields: Mapping[str, Any], where: str) -> float:
        if self.weight_column is None:
            return 1.0
        value = value_at(fields, self.weight_column)
        try:
            weight = float(value)  # a text in a CSV file
        except (TypeError, ValueError):
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise InputError(
                f"{where}: expected a weight, a number of at least 0, in column '{self.weight_column}', "
                f"got {value!r:.200}"
            )
        return weight
