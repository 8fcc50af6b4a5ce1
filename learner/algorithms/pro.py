"""Preference ranking optimisation: make each response likelier than all worse ones, by the gap in reward.

Song et al. 2024 (arXiv 2306.17492), with supervised learning of the best response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from contracts.rollout import FinishReason, Rollout
from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.preferences import Preferences, by_group
from learner.functional import preferences


class PRO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", whole_groups=True)
    in_pairs: ClassVar[bool] = False

    sft_weight: float = Field(default=0.05, ge=0)
    eps: float = Field(default=0.0, ge=0)  # added inside the logarithm; LoL-RL's code adds 1e-10
    # shifted: leave out a response's first token and score an end after its last one, as in PRO's and
    #     LoL-RL's code; for causal models
    suffix_mask: Literal["aligned", "shifted"] = "aligned"

    @property
    def needs_rewards(self) -> bool:
        return True

    @property
    def scores_first_token(self) -> bool:
        return self.suffix_mask == "aligned"

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Return all rollouts, with the loss mask that the options set."""
        if self.suffix_mask == "aligned":
            return list(rollouts), []
        whole = (rollout for rollout in rollouts if rollout.finish_reason is FinishReason.STOP)
        end = next((rollout.turns[-1].tokens[-1:] for rollout in whole), ())
        return [shifted(rollout, end) for rollout in rollouts], []

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Check that a prompt's rewards fall from response to response."""
        from torch import tensor

        super().check(rollouts)
        groups = by_group(rollouts)
        if len({len(group) for group in groups}) == 1:  # otherwise the batch raises the error
            preferences.require_ranked(tensor([[rollout.total_reward for rollout in g] for g in groups]))

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean loss over prompts."""
        rows_N, size = inputs.rows_N, inputs.group_size
        num_prompts = inputs.num_rollouts / size
        in_all = inputs.num_responses
        logprobs_BK = preferences.by_prompt(inputs.logprobs_N, rows_N, size, in_all=in_all)
        ones_N = (inputs.lengths_N * 0 + 1).to(logprobs_BK)
        lengths_BK = preferences.by_prompt(ones_N, rows_N, size, in_all=in_all)
        losses_B = preferences.pro(
            logprobs_BK,
            lengths_BK,
            preferences.by_prompt(inputs.advantages_N, rows_N, size, mean=True, in_all=in_all),
            sft_weight=self.sft_weight,
            eps=self.eps,
        )
        loss = losses_B.sum() / num_prompts
        best_first_B = (logprobs_BK / lengths_BK).detach().argmax(-1) == 0
        metrics = {"loss/policy": loss.detach(), "rewards/accuracy": best_first_B.sum() / num_prompts}
        return LossOutput(loss, metrics)


def shifted(rollout: Rollout, end: tuple[int, ...]) -> Rollout:
    """Move each response's first token to the observation, and add the token `end` after the response.

    Example: the answer to (12, 14) is (15, 17, 2), and 2 is the end: (17, 2, 2) after (12, 14, 15).
    """
    turns = [
        replace(
            turn,
            observation=turn.observation + turn.tokens[:1],
            tokens=turn.tokens[1:] + end,
            behavior_logprobs=turn.behavior_logprobs[1:] + (0.0,) * len(end),
            weight_versions=turn.weight_versions[1:] + (0,) * len(end),
        )
        for turn in rollout.turns
    ]
    return replace(rollout, turns=tuple(turns))
