"""Go on with a film review: its first half is the prompt, the whole review the reference."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.files import hub_splits
from services.data.tasks.rows import check_columns, text_at


class Imdb(DataSetTask):
    """Task with RL4LMs' splits of the hub's data: its shuffled train part 4:1, and 5000 test rows."""

    raw_text: ClassVar[bool] = True
    whole_references: ClassVar[bool] = True
    task_name: ClassVar[str] = "imdb"
    columns: ClassVar[tuple[str, ...]] = ("text",)  # optional further column: label
    default_reward: ClassVar[str] = "sentiment"
    default_metrics: ClassVar[tuple[str, ...]] = ("sentiment", "diversity", "length")

    path: str = "stanfordnlp/imdb"
    seed: int = Field(default=42, ge=0)  # seed of the shuffle before the hub's data set is split
    max_words: int | None = Field(default=None, ge=1)  # words of the prompt; None: half the review

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        review = text_at(fields, "text", where)
        first, _ = halves(review)
        text = " ".join(first.split(" ")[: self.max_words])
        meta = {"label": fields["label"]} if "label" in fields else {}
        return [Prompt("", text, references=(review,), meta=meta)]

    def rows(self, split: Split) -> Any:
        if self.data_files is not None:
            return super().rows(split)
        return divided(self.path, split, self.columns, self.seed, self.subset, self.revision)


def halves(review: str) -> tuple[str, str]:
    """Split a text at blanks into two halves by words; the first has at least one word.

    >>> halves("a b c d e")
    ('a b', 'c d e')
    """
    words = review.split(" ")
    middle = max(1, len(words) // 2)
    return " ".join(words[:middle]), " ".join(words[middle:])


def divided(
    path: str, split: Split, columns: tuple[str, ...], seed: int, subset: str | None, revision: str | None
) -> Any:
    """Return RL4LMs' split of a hub data set that has a train and a test part."""
    rows = hub_splits(path, subset, revision)["test" if split == "test" else "train"].shuffle(seed=seed)
    check_columns(rows.column_names, columns, f"task.path={path}")
    num_train = int(0.8 * len(rows))
    return rows.select(
        {
            "train": range(num_train),
            "validation": range(num_train, len(rows)),
            "test": range(min(5000, len(rows))),
        }[split]
    )
