"""Answer in a conversation with knowledge at hand: Wizard of Wikipedia's replies and FaithDial's together."""

import random
from typing import Any, ClassVar

from pydantic import Field, field_validator

from contracts.errors import InputError
from services.data.tasks.base import Split
from services.data.tasks.faithdial import FaithDial
from services.data.tasks.files import DataFiles, expect_files
from services.data.tasks.knowledge_dialogue import named_files, rows_of
from services.data.tasks.wow import REMEDY


class FaithDialWow(FaithDial):
    """Task over both data sets. `data_files` and `path` are FaithDial's, and the test is all FaithDial's."""

    task_name: ClassVar[str] = "faithdial_wow"

    wow_files: DataFiles | None = None  # ParlAI's folder, or a mapping of splits to its files
    seed: int = Field(default=901, ge=0)  # shuffles both together

    _wow_files = field_validator("wow_files", mode="before")(expect_files)

    def rows(self, split: Split) -> Any:
        of_faithdial = super().rows(split)
        if split == "test":
            return of_faithdial
        if self.wow_files is None:
            raise InputError(f"task={self.task_name} {REMEDY}: task.wow_files=FOLDER")
        both = [*rows_of(named_files(self.wow_files), split), *of_faithdial]
        random.Random(f"{self.seed} {split}").shuffle(both)
        return both
