"""A-LoL and its three variants: learn from responses better than the reference policy's.

Baheti et al. 2024 (arXiv 2305.14718). The advantage is the reward minus the value of the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import Offline
from learner.algorithms.offline_metrics import ratio_metrics
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoL(Offline):
    """A-LoL: learn from responses better than the reference policy's, weighted by their π/π_ref."""

    # A weight is a product over all of a response's tokens.
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True, whole_responses=True)
    weighs_by_advantage: ClassVar[bool] = True

    # Weights stay within 1 ± ppo_clip; null: no bounds. 0 is refused, because in LoL-RL it means no bounds
    ppo_clip: float | None = Field(default=0.9, gt=0)

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol(
            inputs.logprobs_N,
            reference_of(inputs),
            inputs.advantages_N,
            inputs.rows_N,
            ppo_clip=self.ppo_clip,
        )

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        ratios_N = offline.sequence_ratios(inputs.logprobs_N, reference_of(inputs), inputs.rows_N)
        weights = ratio_metrics(inputs, ratios_N, self.ppo_clip, whole_responses=True)
        return super().metrics(inputs) | weights


class ALoLSequence(Offline):
    """A-LoL sequence: weight each token of a response by the token's π/π_ref."""

    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True)
    weighs_by_advantage: ClassVar[bool] = True

    # Weights stay within 1 ± ppo_clip; null: no bounds. 0 is refused, because in LoL-RL it makes all weights
    # 1, as in a_lol_ref_free
    ppo_clip: float | None = Field(default=0.9, gt=0)

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol_seq(
            inputs.logprobs_N, reference_of(inputs), inputs.advantages_N, ppo_clip=self.ppo_clip
        )

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        ratios_N = offline.token_ratios(inputs.logprobs_N, reference_of(inputs))
        weights = ratio_metrics(inputs, ratios_N, self.ppo_clip, whole_responses=False)
        return super().metrics(inputs) | weights


class ALoLKL(Offline):
    """A-LoL with a KL to the reference instead of weights, as published or as a true regulariser."""

    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True)
    weighs_by_advantage: ClassVar[bool] = True

    kl_beta: float = Field(default=0.2, gt=0)
    # log_ratio, as published: on given responses its gradient ignores the reference and only lowers every
    # advantage by kl_beta. unbiased: a true regulariser
    kl_form: offline.KLForm = "log_ratio"

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol_kl(
            inputs.logprobs_N,
            reference_of(inputs),
            inputs.advantages_N,
            kl_beta=self.kl_beta,
            form=self.kl_form,
        )

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        kl_N = offline.kl_term(inputs.logprobs_N.detach(), reference_of(inputs), self.kl_form)
        return super().metrics(inputs) | {"loss/kl": self.over_responses(kl_N, inputs)}


class ALoLReferenceFree(Offline):
    """A-LoL reference-free: weight the likelihood of responses only by their advantage."""

    traits: ClassVar[Traits] = Traits(learns_from="data")
    weighs_by_advantage: ClassVar[bool] = True

    # Let negative advantages lower probabilities without a bound, as LoL-RL does for Helpful-Harmless
    negative_advantages: bool = False

    @property
    def only_positive(self) -> bool:
        return not self.negative_advantages

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol_ref_free(
            inputs.logprobs_N, inputs.advantages_N, negative_advantages=self.negative_advantages
        )
