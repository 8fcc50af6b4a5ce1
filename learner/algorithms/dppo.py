"""DPPO: Dr. GRPO whose trust region bounds the divergence of distributions, not the ratio.

Qi et al. 2026 (arXiv 2602.04879), eq. 12, by the binary approximation: this token against all others. A ratio
clips rare tokens for steps that change little, but lets likely tokens move far. Here a token loses its loss
if its step away from π_old exceeds `clip_range` in probability (or in KL). On the way back it keeps its loss.
Bounds, advantages and weights are those of the authors' run (verl, dppo_trainer). Needs `rollout.group_size`
of 2 or more; the default is 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from learner.algorithms.base import CreditInputs, KLSettings, LossInputs, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation
from learner.functional.ratios import binary_kl, within_trust_region

if TYPE_CHECKING:
    from torch import Tensor

PUBLISHED = {"total_variation": 0.15, "kl": 0.05}  # bounds


class DPPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=16
    )

    divergence: Literal["total_variation", "kl"] = "total_variation"
    clip_range: float = Field(default=0.15, gt=0)  # bound of the divergence; the default with kl is 0.05
    aggregation: Aggregation = "constant"
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    @model_validator(mode="before")
    @classmethod
    def _bound_of_the_divergence(cls, options: Any) -> Any:
        if not isinstance(options, Mapping) or "clip_range" in options:
            return options
        bound = PUBLISHED.get(options.get("divergence", "total_variation"))
        return options if bound is None else {**options, "clip_range": bound}

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=False)

    def _kept(self, inputs: LossInputs) -> Tensor:
        """Return which tokens are within the region or on the way back, (N,)."""
        logprobs_N, old_N = inputs.logprobs_N.detach(), inputs.old_logprobs_N
        moved_N = logprobs_N.exp() - old_N.exp()
        size_N = moved_N.abs() if self.divergence == "total_variation" else binary_kl(old_N, logprobs_N)
        high = self.clip_range_high or self.clip_range
        return within_trust_region(moved_N, size_N, inputs.advantages_N, self.clip_range, high)

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Return Σ w · -M ρ A over tokens, with M 1 for kept tokens and 0 for others."""
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        loss_N = -ratio_N * inputs.advantages_N * self._kept(inputs)
        if inputs.importance_N is not None:
            loss_N = loss_N * inputs.importance_N
        return (weights_N * loss_N).sum()

    def drift(self, inputs: LossInputs) -> dict[str, Tensor]:
        """Return the drift by ratios; `clip_fraction` is the share of tokens that lose their loss."""
        return super().drift(inputs) | {"clip_fraction": (~self._kept(inputs)).sum() / inputs.num_tokens}
