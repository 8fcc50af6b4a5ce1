"""Settings of `learner/models/value_estimator.py`, without torch, whose import takes seconds."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings


class ValueSettings(Settings):
    """Settings of the value head's training, as for A-LoL (arXiv 2305.14718) except held-out prompts."""

    head: Literal["attention", "mean", "mlp"] = "attention"  # kind of network
    max_value: float | None = Field(default=1.0, gt=0)  # the highest possible reward; None: any number
    learning_rate: float = Field(default=1e-5, gt=0)  # AdamW's learning rate
    num_epochs: int = Field(default=10, ge=1)  # passes over the prompts
    batch_size: int = Field(default=16, ge=1)  # prompts
    shuffle: bool = True  # shuffle prompts in each epoch; False: keep their order
    # Held-out prompts choose the best epoch. 0: the training error chooses
    held_out_share: float = Field(default=0.2, ge=0, lt=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)  # dropout in training; predictions run without it
    seed: int = Field(default=0, ge=0)  # seeds generations, the network and the choice of held-out prompts
