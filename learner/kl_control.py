"""The coefficient of the KL penalty, and the two ways it adapts."""

from typing import Literal

from pydantic import Field

from contracts.settings import Settings


class KLSettings(Settings):
    """β of r_t - β·KL_t, and how it follows the measured KL.

    `rl4lms` compares nats per *token*; `ziegler` (arXiv 1909.08593, §2.2) nats per *sequence*.
    Without a target β stays as it is.
    """

    controller: Literal["rl4lms", "ziegler"] = "rl4lms"
    coefficient: float = Field(default=0.1, ge=0)
    target: float | None = Field(default=None, gt=0)
    horizon: int = Field(default=10000, ge=1)  # ziegler: sequences over which an error of 1 is made good


def next_coefficient(
    settings: KLSettings, coefficient: float, kl_per_token: float, kl_per_sequence: float, num_sequences: int
) -> float:
    """β after one batch. The relative error is capped at ±0.2 by both controllers.

    rl4lms:  β · (1 + 0.1 · clip((KL - target) / target, ±0.2)), at most ±2 % a batch
    ziegler: β · (1 + clip(KL / target - 1, ±0.2) · n / horizon)

    >>> round(next_coefficient(KLSettings(target=0.5), 0.1, 0.6, 0.0, 64), 6)
    0.102
    >>> next_coefficient(KLSettings(controller="ziegler", target=6.0, horizon=1000), 0.2, 0.0, 3.0, 100)
    0.196
    """
    if settings.target is None:
        return coefficient
    kl = kl_per_sequence if settings.controller == "ziegler" else kl_per_token
    error = min(0.2, max(-0.2, kl / settings.target - 1.0))
    step = num_sequences / settings.horizon if settings.controller == "ziegler" else 0.1
    return coefficient * (1.0 + error * step)
