"""Sum up a news article in one sentence (XSum, Narayan et al. 2018)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.rows import check_columns, text_at


class Xsum(DataSetTask):
    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "xsum"
    columns: ClassVar[tuple[str, ...]] = ("document",)  # other column: summary, or GEM's target
    default_reward: ClassVar[str] = "meteor"
    default_metrics: ClassVar[tuple[str, ...]] = ("meteor", "rouge", "bleu", "diversity")

    path: str = "EdinburghNLP/xsum"
    prompt_prefix: str = ""
    prompt_suffix: str = "TL;DR:"

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        column = "target" if "target" in fields else "summary"
        check_columns(fields, [column], where)
        text = self.prompt_prefix + text_at(fields, "document", where) + self.prompt_suffix
        return [Prompt("", text, references=(text_at(fields, column, where),))]
