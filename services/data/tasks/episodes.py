"""Play episodes of an environment that needs no data. Each prompt is a seed, in one split only."""

from typing import Any, ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import Split


class Episodes(Settings):
    """Prompts for episodes. The text comes first; the meta data holds the arguments of `reset`.

    Example: the first training prompt, after 64 seeds for the test and 64 for validation.

        Prompt("episodes/train/0", "Guess the number.", meta={"seed": 128})
    """

    raw_text: ClassVar[bool] = True
    default_reward: ClassVar[str | None] = None  # the environment has its own
    default_metrics: ClassVar[tuple[str, ...]] = ()

    instruction: str = ""  # first text of each episode, never cut
    num_prompts: int = Field(default=512, ge=1)  # prompts to train on
    num_eval_prompts: int = Field(default=64, ge=1)  # prompts for validation, and as many for the test
    first_seed: int = Field(default=0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of each reset

    def prompts(self, split: Split) -> list[Prompt]:
        """Give the first seeds to the test, the next to validation, the rest to training.

        More training prompts leave the seeds of the other splits unchanged.
        """
        held_out = self.num_eval_prompts
        seeds = {
            "test": range(held_out),
            "validation": range(held_out, 2 * held_out),
            "train": range(2 * held_out, 2 * held_out + self.num_prompts),
        }[split]
        return [
            Prompt(f"episodes/{split}/{row}", self.instruction, meta=self._meta(self.first_seed + seed))
            for row, seed in enumerate(seeds)
        ]

    def _meta(self, seed: int) -> dict[str, Any]:
        return {"seed": seed, "options": dict(self.options)} if self.options else {"seed": seed}
