"""Settings of `learner/models/value_estimator.py`, without torch, whose import takes seconds."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings


class ValueSettings(Settings):
    """Settings of the value head's training; defaults are A-LoL's for Helpful-Harmless (arXiv 2305.14718),
    except for the held-out prompts.
    """

    head: Literal["attention", "mean", "mlp"] = "attention"  # kind of network
    max_value: float | None = Field(default=1.0, gt=0)  # the highest possible reward; None: any number
    learning_rate: float = Field(default=1e-5, gt=0)  # of AdamW
    num_epochs: int = Field(default=10, ge=1)  # passes over the prompts
    batch_size: int = Field(default=16, ge=1)  # prompts
    shuffle: bool = True  # shuffle prompts in each epoch; False: keep their order
    # Held-out prompts choose the epoch that is kept. 0: the training error chooses
    held_out_share: float = Field(default=0.2, ge=0, lt=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)  # in training; predictions run without it
    seed: int = Field(default=0, ge=0)  # of generations, network and held-out prompts
