"""Problems from reasoning_gym with its scorers: sums, puzzles, games and logic, a hundred kinds."""

import importlib.util
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import Split
from services.data.tasks.reasoning_items import items


class ReasoningGym(Settings):
    """Task of one of reasoning_gym's data sets. The seed and the index determine an item.

    The first `num_prompts` items are for training, the next `num_eval_prompts` for validation, then for test.

    Example: `task=reasoning_gym task.dataset=chain_sum 'task.options={max_terms: 3}'`
    """

    default_reward: ClassVar[str] = "reasoning_gym"
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    dataset: str = Field(default="chain_sum", min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)  # options of the data set
    num_prompts: int = Field(default=1000, ge=1)  # prompts to train on
    num_eval_prompts: int = Field(default=100, ge=1)  # prompts for validation, and as many for the test
    seed: int = Field(default=0, ge=0)  # makes the items; the run's seed does not change them
    prompt_prefix: str = ""
    prompt_suffix: str = ""  # such as " Answer inside <answer></answer>."

    def prompts(self, split: Split) -> list[Prompt]:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise InputError(
                "task=reasoning_gym needs the package reasoning-gym: pip install 'whetstone[reasoning]'"
            )
        first, count = {
            "train": (0, self.num_prompts),
            "validation": (self.num_prompts, self.num_eval_prompts),
            "test": (self.num_prompts + self.num_eval_prompts, self.num_eval_prompts),
        }[split]
        made = items(self.dataset, self.options, self.seed, first, count)
        return [self._prompt(split, row, item) for row, item in enumerate(made)]

    def _prompt(self, split: Split, row: int, item: dict[str, str]) -> Prompt:
        return Prompt(
            id=f"reasoning_gym/{split}/{row}",
            text=f"{self.prompt_prefix}{item['question']}{self.prompt_suffix}",
            references=(item["answer"],) if item["answer"] else (),
            meta={
                "reasoning_gym": {
                    "dataset": self.dataset,
                    "options": self.options,
                    "entry": item["entry"],
                }
            },
        )
