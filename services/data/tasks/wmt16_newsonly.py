"""Translate English to German, trained only on news commentary and tested on the news of WMT 2016."""

from typing import Any, ClassVar

from services.data.tasks.base import Split
from services.data.tasks.files import from_hub, hub_splits
from services.data.tasks.translation import Translation


class Wmt16NewsOnly(Translation):
    task_name: ClassVar[str] = "wmt16_newsonly"

    path: str = "Helsinki-NLP/news_commentary"  # data set of the training split
    evaluation_path: str = "wmt/wmt16"  # data set of validation and test
    subset: str | None = "de-en"

    def rows(self, split: Split) -> Any:
        if self.data_files is not None:
            return super().rows(split)
        if split == "train":  # all rows, because the other splits have their own data
            return hub_splits(self.path, self.subset, self.revision)["train"]
        return from_hub(self.evaluation_path, split, (), subset=self.subset)
