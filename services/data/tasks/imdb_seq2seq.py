"""Write the second half of a film review: the first is the prompt, and train has positive reviews alone."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.imdb import divided, halves
from services.data.tasks.rows import text_at


class ImdbSeq2Seq(DataSetTask):
    """Task with the splits of `imdb`; validation and test keep reviews of both kinds."""

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "imdb_seq2seq"
    columns: ClassVar[tuple[str, ...]] = ("text", "label")
    one_each: ClassVar[bool] = False
    default_reward: ClassVar[str] = "sentiment"
    default_metrics: ClassVar[tuple[str, ...]] = ("sentiment", "diversity", "length")

    path: str = "stanfordnlp/imdb"
    seed: int = Field(default=42, ge=0)  # seed of the shuffle before the hub's data set is split
    positive_ratio: float = Field(default=1.0, gt=0, le=1)  # share of train's positive reviews to use

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        review, label = text_at(fields, "text", where), str(fields["label"])  # CSV files give text
        if label not in ("0", "1"):
            raise InputError(f"{where}: expected 0 (negative) or 1 (positive) in column 'label', got {label}")
        if split == "train" and label == "0":
            return []
        first, second = halves(review)
        return [Prompt("", first, references=(second,), meta={"reference": review})]

    def rows(self, split: Split) -> Any:
        if self.data_files is not None:
            return super().rows(split)
        return divided(self.path, split, self.columns, self.seed, self.subset, self.revision)

    def size(self, split: Split, available: int) -> int:
        share = max(1, int(available * self.positive_ratio)) if split == "train" else available
        return super().size(split, min(share, available))
