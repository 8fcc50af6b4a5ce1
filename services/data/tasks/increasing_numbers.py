"""Go on with a row of increasing numbers, from two or more to start with: "3 7"."""

from itertools import combinations
from typing import ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import Split
from services.data.tasks.synthetic import deal


class IncreasingNumbers(Settings):
    raw_text: ClassVar[bool] = True
    default_reward: ClassVar[str] = "increasing_numbers"
    default_metrics: ClassVar[tuple[str, ...]] = ("increasing_numbers", "length")

    num_prompts: int = Field(default=512, ge=1)  # prompts to train on
    num_eval_prompts: int = Field(default=64, ge=1)  # prompts for validation, and as many for the test
    num_start_numbers: int = Field(default=2, ge=1, le=4)
    below: int = Field(default=50, ge=2, le=100)  # the start numbers are 0 to below - 1
    seed: int = Field(default=0, ge=0)  # chooses the prompts; the run's seed does not change them

    def prompts(self, split: Split) -> list[Prompt]:
        rows = combinations(range(self.below), self.num_start_numbers)
        texts = [" ".join(map(str, row)) for row in rows]
        return deal(
            "increasing_numbers",
            texts,
            split,
            num_train=self.num_prompts,
            num_eval=self.num_eval_prompts,
            seed=self.seed,
        )
