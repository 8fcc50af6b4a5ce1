"""Settings of a reward model's training: a classifier or a preference model."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.base import OptimizerSettings


class RewardTraining(Settings):
    """Settings of reward training, with BERT's defaults (Devlin et al. 2019, A.3). A pair is one example."""

    learning_rate: float = Field(default=2e-5, gt=0)
    head_learning_rate: float | None = Field(default=None, gt=0)  # rate of the head; None: learning_rate
    num_epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=32, ge=1)  # examples of one step
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_share: float = Field(default=0.1, ge=0, lt=1)  # share of all steps
    max_grad_norm: float | None = Field(default=1.0, gt=0)  # None: no clipping
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.01)

    class_weights: Literal["none", "balanced"] = "none"  # balanced: all labels have the same total weight
    centering: float = Field(
        default=0.0, ge=0
    )  # pairs: weight of (r_chosen + r_rejected)², which keeps rewards near 0

    best_by: Literal["accuracy", "loss"] = "accuracy"  # measure on the validation rows that chooses the epoch
    patience: int | None = Field(
        default=None, ge=1
    )  # epochs without improvement after which training ends; None: it runs all
    max_length: int | None = Field(
        default=None, ge=2
    )  # tokens; a longer text keeps its end. None: the window
    token_budget: int = Field(default=16_384, ge=1)  # tokens of a micro-batch, padding included
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more compute
    device: Literal["auto", "cpu", "cuda"] = "auto"
    autocast: Literal["auto", "bfloat16", "none"] = (
        "auto"  # in training; auto: bfloat16 on a GPU, none on a CPU
    )
    seed: int = Field(default=0, ge=0)
