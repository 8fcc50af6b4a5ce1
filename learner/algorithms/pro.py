"""Preference ranking optimisation: each response likelier than all worse ones, by how much it earned more.

Song et al. 2024 (arXiv 2306.17492), with supervised learning of the best response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from learner.algorithms.base import LossInputs, LossOutput
from learner.algorithms.preferences import Preferences, by_group
from learner.functional import preferences

if TYPE_CHECKING:
    from contracts.rollout import Rollout


class PRO(Preferences):
    sft_weight: float = Field(default=0.05, ge=0)
    eps: float = Field(default=0.0, ge=0)  # within the logarithm; LoL-RL's code: 1e-10

    @property
    def needs_rewards(self) -> bool:
        return True

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Rewards of a prompt fall from response to response."""
        from torch import tensor

        super().check(rollouts)
        groups = by_group(rollouts)
        if len({len(group) for group in groups}) == 1:  # else the batch says so
            preferences.require_ranked(tensor([[each.total_reward for each in g] for g in groups]))

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The mean over prompts."""
        rows_N, size = inputs.rows_N, inputs.group_size
        num_prompts = inputs.num_rollouts / size
        logprobs_BK = preferences.by_prompt(inputs.logprobs_N, rows_N, size)
        lengths_BK = preferences.by_prompt((inputs.lengths_N * 0 + 1).to(logprobs_BK), rows_N, size)
        losses_B = preferences.pro(
            logprobs_BK,
            lengths_BK,
            preferences.by_prompt(inputs.advantages_N, rows_N, size, mean=True),
            sft_weight=self.sft_weight,
            eps=self.eps,
        )
        loss = losses_B.sum() / num_prompts
        best_first_B = (logprobs_BK / lengths_BK).detach().argmax(-1) == 0
        metrics = {"loss/policy": loss.detach(), "rewards/accuracy": best_first_B.sum() / num_prompts}
        return LossOutput(loss, metrics)
