"""Make a sentence out of three to five everyday words (CommonGen, Lin et al. 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Side, Split
from services.data.tasks.data_set import HIDDEN, DataSetTask
from services.data.tasks.rows import check_columns, texts_at


class CommonGen(DataSetTask):
    """Task whose references are the column `references`, as in GEM's evaluation data, otherwise `target`.

    For evaluation, rows with the same prompt become one prompt with all their sentences. In training each
    sentence has its own prompt, unless `group_train` is true. As in RL4LMs, `references=target` uses only the
    target.
    """

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "commongen"
    columns: ClassVar[tuple[str, ...]] = ("concepts",)  # other columns: target, or references
    truncation_side: ClassVar[Side] = "right"
    default_reward: ClassVar[str] = "meteor"
    default_metrics: ClassVar[tuple[str, ...]] = ("meteor", "rouge", "bleu", "cider", "diversity")

    path: str = "allenai/common_gen"
    concept_separator_token: str = " "
    concept_end_token: str = "."
    prefix: str = "generate a sentence with: "
    references: Literal["all", "target"] = "all"  # target: one sentence and one prompt for each row
    group_train: bool = False  # one training prompt for each set of words, with all its sentences

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        concepts = texts_at(fields, "concepts", where)
        if not concepts:
            raise InputError(f"{where}: expected at least one word in column 'concepts', got none")
        text = self.prefix + self.concept_separator_token.join(concepts) + self.concept_end_token
        references = _references(split, fields, where, target_alone=self.references == "target")
        return [Prompt("", text, references, meta={"concepts": list(concepts)})]

    def puts_together(self, split: Split) -> bool:
        return self.group_train if split == "train" else self.references == "all"


def _references(
    split: Split, fields: Mapping[str, Any], where: str, *, target_alone: bool
) -> tuple[str, ...]:
    several = fields.get("references") and not target_alone
    texts = texts_at(fields, "references", where) if several else ()
    if not texts:
        check_columns(fields, ["target"], where)
        texts = texts_at(fields, "target", where)
    kept = tuple(text for text in texts if text.strip())
    return kept or ((HIDDEN,) if split == "test" else ())
