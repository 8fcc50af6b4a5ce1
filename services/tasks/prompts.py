"""Anyone's prompts: JSON Lines, CSV or Parquet files, or a data set on the hub, with columns of any name."""

from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings, Strings
from services.tasks.base import Split
from services.tasks.files import DataFiles, expect_files, from_files, from_hub, read_ahead
from services.tasks.rows import text_at


class Prompts(Settings):
    default_reward: ClassVar[None] = None
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    data_files: DataFiles | None = None  # a folder, a file, or a mapping of splits to files
    path: str | None = None  # a data set's name on the hub, instead of data_files
    subset: str | None = None  # of the hub's data set, where it has several: "3.0.0" of cnn_dailymail
    revision: str | None = None  # of the hub's data set
    prompt_column: str = "prompt"
    references_column: str | None = None  # a text or a list of texts; None: there are none
    meta_columns: Strings = ()  # what rewards are shown besides
    limit: int | None = Field(default=None, ge=1)  # rows of each split; None: all

    _files = field_validator("data_files", mode="before")(expect_files)

    @model_validator(mode="after")
    def _one_source(self) -> "Prompts":
        if (self.data_files is None) == (self.path is None):
            raise ValueError(
                "expected either task.data_files= (files of your own) or task.path= (a hub name)"
            )
        return self

    def prompts(self, split: Split) -> list[Prompt]:
        if self.data_files is not None:
            rows = from_files(self.data_files, split, self._columns)
        else:
            rows = from_hub(str(self.path), split, self._columns, subset=self.subset, revision=self.revision)
        kept = rows if self.limit is None else rows.select(range(min(self.limit, len(rows))))
        return [self._prompt(split, row, fields) for row, fields in enumerate(kept)]

    def first_prompts(self, split: Split) -> list[Prompt]:
        rows = read_ahead(self.data_files, split, self._columns)[: self.limit]
        return [self._prompt(split, row, fields) for row, fields in enumerate(rows)]

    @property
    def _columns(self) -> list[str]:
        references = [self.references_column] if self.references_column else []
        return [self.prompt_column, *references, *self.meta_columns]

    def _prompt(self, split: Split, row: int, fields: dict[str, Any]) -> Prompt:
        where = f"task=prompts, {split} row {row}"
        return Prompt(
            id=f"prompts/{split}/{row}",
            text=text_at(fields, self.prompt_column, where),
            references=self._references(fields, where),
            meta={column: fields[column] for column in self.meta_columns},
        )

    def _references(self, fields: dict[str, Any], where: str) -> tuple[str, ...]:
        if self.references_column is None:
            return ()
        value = fields[self.references_column]
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"{where}: expected a text or a list of texts in column '{self.references_column}', "
                f"got {value!r}"
            )
        return tuple(texts)
