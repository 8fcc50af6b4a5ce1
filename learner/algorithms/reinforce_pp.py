"""REINFORCE++: token returns with the KL penalty, normalised over the whole batch; clipped; no critic.

Hu 2025 (arXiv 2501.03262).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.advantages import generalized_advantages, whiten
from learner.functional.turns import turn_ends

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePP(CriticFree):
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, mixes_data="weighted")

    gamma: float = Field(default=1.0, ge=0, le=1)
    kl: KLSettings = KLSettings(coefficient=0.01)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        """Whiten the discounted return-to-go of r - β·KL over the batch's tokens; a truncation is an end."""
        mask_BT = inputs.mask_BT.bool()
        rewards_BT = self.token_rewards(inputs)
        # without values and with λ = 1, GAE's advantage is the return
        returns_BT, _ = generalized_advantages(
            rewards_BT,
            rewards_BT * 0,
            mask_BT,
            gamma=self.gamma,
            gae_lambda=1.0,
            ends_BT=turn_ends(inputs.positions_BT, mask_BT),
            turn_gamma=self.turn_gamma,
        )
        return returns_BT.masked_scatter(mask_BT, whiten(returns_BT[mask_BT]))
