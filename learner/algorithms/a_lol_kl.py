"""A-LoL with a KL to the reference in place of weights, as published or as a true regulariser.

Baheti et al. 2024 (arXiv 2305.14718).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import Offline, Worth
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoLKL(Offline):
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True)

    kl_beta: float = Field(default=0.2, gt=0)
    # log_ratio, as published: on given responses its gradient ignores the reference and only lowers every
    # advantage by kl_beta. unbiased: a true regulariser
    kl_form: offline.KLForm = "log_ratio"

    @property
    def worth(self) -> Worth:
        return "advantage"

    @property
    def only_positive(self) -> bool:
        return True

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
