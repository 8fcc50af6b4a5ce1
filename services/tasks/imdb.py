"""Go on with a film review: its first half is the prompt, the whole review the reference."""

from typing import Any, ClassVar

from pydantic import Field, field_validator

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.tasks.base import Split
from services.tasks.files import DataFiles, expect_files, from_files, hub_splits, read_ahead
from services.tasks.rows import check_columns, text_at


class Imdb(Settings):
    """From the hub the splits are RL4LMs': the shuffled train part divided 4:1, and 5000 of the test part."""

    default_reward: ClassVar[str] = "sentiment"
    default_metrics: ClassVar[tuple[str, ...]] = ("sentiment", "length")

    path: str = "stanfordnlp/imdb"  # the hub's name, or data_files instead
    data_files: DataFiles | None = None  # with columns text and, if known, label
    seed: int = Field(default=42, ge=0)  # of the shuffle before the hub's data set is divided
    max_words: int | None = Field(default=None, ge=1)  # of the prompt; None: half the review, however long

    _files = field_validator("data_files", mode="before")(expect_files)

    def prompts(self, split: Split) -> list[Prompt]:
        rows = (
            self._from_hub(split) if self.data_files is None else from_files(self.data_files, split, ["text"])
        )
        return [self._prompt(split, row, fields) for row, fields in enumerate(rows)]

    def first_prompts(self, split: Split) -> list[Prompt]:
        rows = read_ahead(self.data_files, split, ["text"])
        return [self._prompt(split, row, fields) for row, fields in enumerate(rows)]

    def _prompt(self, split: Split, row: int, fields: dict[str, Any]) -> Prompt:
        review = text_at(fields, "text", f"task=imdb, {split} row {row}")
        words = review.split(" ")
        half = words[: max(1, len(words) // 2)][: self.max_words]
        meta = {"label": fields["label"]} if "label" in fields else {}
        return Prompt(id=f"imdb/{split}/{row}", text=" ".join(half), references=(review,), meta=meta)

    def _from_hub(self, split: Split) -> Any:
        rows = hub_splits(self.path)["test" if split == "test" else "train"].shuffle(seed=self.seed)
        check_columns(rows.column_names, ["text"], f"task.path={self.path}")
        num_train = int(0.8 * len(rows))
        return rows.select(
            {
                "train": range(num_train),
                "validation": range(num_train, len(rows)),
                "test": range(min(5000, len(rows))),
            }[split]
        )
