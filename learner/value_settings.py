"""How the reference's value is learned by `learner/value_estimator.py`. No torch: that takes seconds."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings


class ValueSettings(Settings):
    """The defaults are A-LoL's for Helpful-Harmless (arXiv 2305.14718), but for the prompts held out."""

    head: Literal["attention", "mean", "mlp"] = "attention"
    max_value: float | None = Field(default=1.0, gt=0)  # the highest reward there is; None: any number
    learning_rate: float = Field(default=1e-5, gt=0)
    num_epochs: int = Field(default=10, ge=1)
    batch_size: int = Field(default=16, ge=1)  # prompts
    shuffle: bool = True  # the prompts anew for each epoch; False: always in their own order
    # Of the prompts: they choose the epoch that is kept. 0: none, and the training error chooses
    held_out_share: float = Field(default=0.2, ge=0, lt=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)  # in training; advantages are made without
    seed: int = Field(default=0, ge=0)
