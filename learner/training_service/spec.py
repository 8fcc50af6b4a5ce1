"""Choices for a training service's model: what trains, and the rates of a step. Without torch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A trained model: an adapter of rank `rank`, or all weights.

    Example: `ModelSpec(rank=32, seed=7)` has an adapter at all linear layers except the head and starts from
        the seed. `ModelSpec(rank=None)` trains a copy of the base.
    """

    rank: int | None
    seed: int = 0
    train_attn: bool = True
    train_mlp: bool = True


@dataclass(frozen=True, slots=True)
class AdamParams:
    """Rates of one step, with the defaults of Tinker's SDK. A `grad_clip_norm` of 0 clips nothing."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """Report of a step: the gradients' norm before clipping. If it is not finite, nothing moved."""

    norm: float

    @property
    def moved(self) -> bool:
        return math.isfinite(self.norm)
