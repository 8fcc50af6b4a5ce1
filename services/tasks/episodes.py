"""Episodes of an environment that needs no data: each prompt is a seed, and held-out seeds are held out."""

from typing import Any, ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.tasks.base import Split


class Episodes(Settings):
    """The prompt's text stands in front of every episode; its seed is in the meta data, with what else a
    Gymnasium environment's `reset` is given.

    Example: the first training prompt, with 64 seeds for validation and 64 for the test before it.

        Prompt("episodes/train/0", "Guess the number.", meta={"seed": 128})
    """

    default_reward: ClassVar[str | None] = None  # the environment's own
    default_metrics: ClassVar[tuple[str, ...]] = ()

    instruction: str = ""  # said before everything else, and never forgotten
    num_prompts: int = Field(default=512, ge=1)  # to train on
    num_eval_prompts: int = Field(default=64, ge=1)  # for validation, and as many for the test
    first_seed: int = Field(default=0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)  # of each reset

    def prompts(self, split: Split) -> list[Prompt]:
        """The test has the first seeds, then validation, then training: more prompts to train on leave the
        others as they are.
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
