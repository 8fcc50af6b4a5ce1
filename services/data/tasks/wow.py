"""Answer in a conversation with a piece of knowledge at hand (Wizard of Wikipedia, Dinan et al. 2019)."""

from typing import Any, ClassVar

from contracts.errors import InputError
from services.data.tasks.base import Split
from services.data.tasks.faithdial import FaithDial
from services.data.tasks.knowledge_dialogue import named_files, rows_of

REMEDY = "reads ParlAI's files of Wizard of Wikipedia (train.json, valid_topic_split.json)"


class Wow(FaithDial):
    """Task that reads ParlAI's folder: its train part, and its unseen topics for validation.

    Without a test file it uses FaithDial's test, which has the same conversations with faithful replies.
    """

    task_name: ClassVar[str] = "wow"

    def rows(self, split: Split) -> Any:
        if self.data_files is None:
            raise InputError(f"task={self.task_name} {REMEDY}: task.data_files=FOLDER")
        files = named_files(self.data_files)
        if split == "test" and "test" not in files:
            return FaithDial(path=self.path, subset=self.subset, revision=self.revision).rows("test")
        return rows_of(files, split)
