"""What can be set about the training of a reward model: a classifier, or a model of preferences."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.base import OptimizerSettings


class RewardTraining(Settings):
    """The defaults are BERT's fine-tuning (Devlin et al. 2019, appendix A.3). A pair is one example."""

    learning_rate: float = Field(default=2e-5, gt=0)
    head_learning_rate: float | None = Field(default=None, gt=0)  # of the head alone; None: learning_rate
    num_epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=32, ge=1)  # examples of one step
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_share: float = Field(default=0.1, ge=0, lt=1)  # of all steps
    max_grad_norm: float | None = Field(default=1.0, gt=0)  # None: no clipping
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.01)

    class_weights: Literal["none", "balanced"] = (
        "none"  # balanced: a rare label counts more, each as a whole the same
    )
    centering: float = Field(
        default=0.0, ge=0
    )  # pairs: weight of (r_chosen + r_rejected)², keeps rewards about 0

    best_by: Literal["accuracy", "loss"] = "accuracy"  # which epoch is kept, by the validation rows
    patience: int | None = Field(
        default=None, ge=1
    )  # epochs without a better one, after which it ends; None: all
    max_length: int | None = Field(
        default=None, ge=2
    )  # tokens; of longer texts the end is kept. None: the window
    token_budget: int = Field(default=16_384, ge=1)  # tokens of a micro-batch, padding included
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more compute
    device: Literal["auto", "cpu", "cuda"] = "auto"
    autocast: Literal["auto", "bfloat16", "none"] = (
        "auto"  # in training; auto: bfloat16 on a GPU, none on a CPU
    )
    seed: int = Field(default=0, ge=0)
