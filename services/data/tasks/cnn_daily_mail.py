"""Sum up a news article in its highlights (CNN/Daily Mail, See et al. 2017)."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from services.data.tasks.base import Side, Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.rows import text_at

A_WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")


class CnnDailyMail(DataSetTask):
    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "cnn_daily_mail"
    columns: ClassVar[tuple[str, ...]] = ("article", "highlights")
    truncation_side: ClassVar[Side] = "right"  # because news articles begin with the important facts
    default_reward: ClassVar[str] = "meteor"
    default_metrics: ClassVar[tuple[str, ...]] = ("meteor", "rouge", "bleu", "diversity")

    path: str = "abisee/cnn_dailymail"
    subset: str | None = "3.0.0"
    prompt_prefix: str = "Summarize: "
    prompt_suffix: str = ""
    truncate_article: int | None = Field(default=None, ge=1)  # words and punctuation marks; None: whole

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        article = first_words(text_at(fields, "article", where), self.truncate_article)
        text = self.prompt_prefix + article + self.prompt_suffix
        return [Prompt("", text, references=(text_at(fields, "highlights", where),))]


def first_words(text: str, count: int | None) -> str:
    """Cut `text` after its `count`-th word or punctuation mark; blanks stay unchanged.

    >>> first_words("Mr. Smith isn't here. He left.", 6)
    "Mr. Smith isn't here."
    """
    if count is None:
        return text
    for number, word in enumerate(A_WORD.finditer(text), start=1):
        if number == count:
            return text[: word.end()]
    return text
