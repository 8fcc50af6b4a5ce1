"""Settings under `curriculum.`: how often prompts come that the model always or never solves."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings


class CurriculumSettings(Settings):
    """A curriculum over a run's prompts.

    Example: `curriculum=pass_rate` is `CurriculumSettings()`; for rewards from 0 to 10,
    `curriculum.solved_at=8`
    """

    by: Literal["pass_rate"] = "pass_rate"  # share of a prompt's answers that solve it, a running average
    solved_at: float = 1.0  # reward from which an answer solves its prompt
    # Share of the epochs in which a prompt comes that is always or never solved
    least_share: float = Field(default=0.1, ge=0.01, le=1)
