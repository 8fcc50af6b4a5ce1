"""Your own prompts: JSON Lines, CSV or Parquet files, or a data set on the hub, with columns of any name."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings, Strings
from services.tasks.base import Split
from services.tasks.files import DataFiles, expect_files, from_files, from_hub, read_ahead
from services.tasks.lazy import PromptsOfRows
from services.tasks.rows import text_at, texts_at


class Prompts(Settings):
    default_reward: ClassVar[None] = None
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    data_files: DataFiles | None = None  # a folder, a file, or a mapping of splits to files
    path: str | None = None  # a data set's name on the hub, instead of data_files
    subset: str | None = None  # of the hub's data set, such as "3.0.0" of cnn_dailymail
    revision: str | None = None  # of the hub's data set
    prompt_column: str = "prompt"
    references_column: str | None = None  # holds a text or a list of texts; None: no references
    meta_columns: Strings = ()  # further columns for rewards
    weight_column: str | None = None  # for rollout.priority_scale; None: every prompt weighs 1
    limit: int | None = Field(default=None, ge=1)  # rows of each split; None: all
    streaming: bool = False  # make a prompt when it is read; the rows stay on the disk

    _files = field_validator("data_files", mode="before")(expect_files)

    @model_validator(mode="after")
    def _one_source(self) -> "Prompts":
        if (self.data_files is None) == (self.path is None):
            raise ValueError(
                "expected either task.data_files= (files of your own) or task.path= (a hub name)"
            )
        return self

    def prompts(self, split: Split) -> Sequence[Prompt]:
        if self.data_files is not None:
            rows = from_files(self.data_files, split, self._columns)
        else:
            rows = from_hub(str(self.path), split, self._columns, subset=self.subset, revision=self.revision)
        made = PromptsOfRows(rows, partial(self._of_row, split), max_size=self.limit)
        return made if self.streaming else list(made)

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        rows = read_ahead(self.data_files, split, self._columns)
        return list(PromptsOfRows(rows, partial(self._of_row, split), max_size=self.limit))

    @property
    def _columns(self) -> list[str]:
        more = [self.references_column, *self.meta_columns, self.weight_column]
        return [self.prompt_column, *filter(None, more)]

    def _of_row(self, split: Split, row: int, fields: Mapping[str, Any]) -> list[Prompt]:
        where = f"task=prompts, {split} row {row}"
        column = self.references_column
        prompt = Prompt(
            id=f"prompts/{split}/{row}",
            text=text_at(fields, self.prompt_column, where),
            references=() if column is None else texts_at(fields, column, where),
            meta={column: fields[column] for column in self.meta_columns},
            weight=self._weight(fields, where),
        )
        return [prompt]

    def _weight(self, fields: Mapping[str, Any], where: str) -> float:
        if self.weight_column is None:
            return 1.0
        value = fields[self.weight_column]
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
