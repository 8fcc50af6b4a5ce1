"""Settings of the KL to the reference, and the controllers that adapt its coefficient."""

from typing import Literal

from pydantic import Field, model_validator

from contracts.settings import Settings


class KLSettings(Settings):
    """Settings of the KL penalty: its coefficient β, its place, its estimator and its controller.

    - In the reward: r_t - β·KL_t, estimated by `k1` (log π/π_ref, as in RL4LMs), `k2`, `k3`, or `full` (a sum
      over the vocabulary, without noise). Only `k1` gives the token itself the gradient of KL(π‖π_ref). `k2`
      and `k3` hardly act near the reference; `full` charges a state to the tokens before it.
    - In the loss: + β·KL, by `k1` with the exact gradient (the ratio inside the graph, as in trl-textworld),
      `k2`, `k3` (as in GRPO, with the gradient of KL(π_ref‖π)), `k3_exact` (as in trl, with the gradient of
      KL(π‖π_ref)), `full`, `forward` (KL(π_ref‖π), sampled) or `forward_full`.

    Controllers adapt β to a target KL: `rl4lms` in nats per *token*, `ziegler` (arXiv 1909.08593, §2.2) in
    nats per *sequence*. Without a target, β stays constant. If β is 0, only `kl/mean` needs the reference. It
    scores every `measure_every`-th response of a batch. With `measure_every=0` no reference is loaded.
    """

    placement: Literal["reward", "loss"] = "reward"
    estimator: Literal["k1", "k2", "k3", "k3_exact", "full", "forward", "forward_full"] = "k1"
    controller: Literal["rl4lms", "ziegler"] = "rl4lms"
    coefficient: float = Field(default=0.1, ge=0)
    target: float | None = Field(default=None, gt=0)
    horizon: int = Field(default=10000, ge=1)  # ziegler: number of sequences that correct an error of 1
    # with coefficient 0 the KL is only charted: score every n-th response; 0: none, and no chart
    measure_every: int = Field(default=8, ge=0)

    @model_validator(mode="after")
    def _only_in_the_loss(self) -> "KLSettings":
        if self.placement == "reward" and self.estimator == "k3_exact":
            raise ValueError(
                "estimator=k3_exact corrects a gradient, and a reward has none; expected placement=loss with "
                "it, or estimator=k1"
            )
        if self.placement == "reward" and self.estimator.startswith("forward"):
            raise ValueError(
                f"estimator={self.estimator} measures KL(reference‖policy), which only a loss can push on; "
                "expected placement=loss with it"
            )
        return self

    @model_validator(mode="after")
    def _controllers_multiply(self) -> "KLSettings":
        if self.target is not None and self.coefficient == 0:
            raise ValueError(
                f"got coefficient=0 with target={self.target}; controllers multiply the coefficient, and 0 "
                "stays 0: expected one above 0, or no target"
            )
        return self

    @property
    def is_asked_for(self) -> bool:
        """Return whether any update reads the KL and so needs a reference."""
        return bool(self.coefficient or self.measure_every)

    @property
    def sums_vocabulary(self) -> bool:
        return self.estimator.endswith("full")


def next_coefficient(
    settings: KLSettings, coefficient: float, kl_per_token: float, kl_per_sequence: float, num_sequences: int
) -> float:
    """Return β after one batch. Both controllers cap the relative error at ±0.2.

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
