"""Solve a word problem of primary school (GSM8K, Cobbe et al. 2021, 2110.14168)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.rows import answer_at, text_at


class Gsm8k(DataSetTask):
    """Task whose references are the solutions, which end in `#### 42`. Answers alone are valid, too."""

    task_name: ClassVar[str] = "gsm8k"
    columns: ClassVar[tuple[str, ...]] = ("question", "answer")
    default_reward: ClassVar[str] = "math"
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    path: str = "openai/gsm8k"
    subset: str | None = "main"
    prompt_prefix: str = ""
    prompt_suffix: str = ""  # such as " Put the answer into \\boxed{}."

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        question = text_at(fields, "question", where)
        text = f"{self.prompt_prefix}{question}{self.prompt_suffix}" if question.strip() else ""
        return [Prompt("", text, references=(answer_at(fields, "answer", where),))]
