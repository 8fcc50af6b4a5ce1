"""Solve a problem of a mathematics competition (MATH, Hendrycks et al. 2021, 2103.03874)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.rows import answer_at, text_at


class Math(DataSetTask):
    """Task whose reference is the column `answer`, or the `solution`, which has the answer in a box.

    The columns `level`, `subject` and `type` become meta data.
    """

    task_name: ClassVar[str] = "math"
    columns: ClassVar[tuple[str, ...]] = ("problem",)  # other column: answer or solution
    default_reward: ClassVar[str] = "math"
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    path: str = "DigitalLearningGmbH/MATH-lighteval"
    prompt_prefix: str = ""
    prompt_suffix: str = ""  # such as " Put the answer into \\boxed{}."

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        column = next((name for name in ("answer", "solution") if fields.get(name) is not None), None)
        if column is None:
            raise InputError(f"{where}: expected a column 'answer' or 'solution', got {sorted(fields)}")
        problem = text_at(fields, "problem", where)
        text = f"{self.prompt_prefix}{problem}{self.prompt_suffix}" if problem.strip() else ""
        meta = {name: fields[name] for name in ("level", "subject", "type") if fields.get(name) is not None}
        return [Prompt("", text, references=(answer_at(fields, column, where),), meta=meta)]
