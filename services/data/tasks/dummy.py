"""Repeat one prompt: for rewards that need no data, and for trials."""

from typing import ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import Split


class Dummy(Settings):
    """Task with one prompt, the same in all splits."""

    raw_text: ClassVar[bool] = True
    default_reward: ClassVar[str] = "increasing_numbers"
    default_metrics: ClassVar[tuple[str, ...]] = ("increasing_numbers", "length")

    prompt: str = "Let us generate some numbers"
    n_samples: int = Field(default=100, ge=1)  # prompts of each split

    def prompts(self, split: Split) -> list[Prompt]:
        return [Prompt(f"dummy/{split}/{row}", self.prompt) for row in range(self.n_samples)]
