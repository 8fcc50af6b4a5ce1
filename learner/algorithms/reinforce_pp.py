"""REINFORCE++: returns of tokens, KL penalty included, normalised over the whole batch; clipped; no critic.

Hu 2025 (arXiv 2501.03262).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from learner.algorithms.base import CreditInputs
from learner.algorithms.critic_free import CriticFree
from learner.functional.advantages import generalized_advantages, whiten
from learner.functional.turns import turn_ends
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePP(CriticFree):
    gamma: float = Field(default=1.0, ge=0, le=1)
    kl: KLSettings = KLSettings(coefficient=0.01)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        """Discounted return-to-go of r - β·KL, whitened over all tokens of the batch; a cut is an end."""
        mask_BT = inputs.mask_BT.bool()
        rewards_BT = inputs.rewards_BT - inputs.kl_coefficient * inputs.kl_BT
        # without values and with λ = 1 the advantage of GAE is the return
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
