"""What NLL, WBC, GOLD, R-LoL and A-LoL share: responses weighed by their reward or advantage.

Baheti et al. 2024 (arXiv 2305.14718); the losses are in `learner/functional/offline.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from learner.algorithms.base import CreditInputs, LossInputs, LossOutput
from learner.algorithms.from_data import FromData, reference_of
from learner.functional.aggregation import token_weights
from learner.functional.offline import Reduction, over_responses, sequence_ratios
from learner.functional.selection import SamplingStrategy, Selection, require_positive, select_epoch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Worth = Literal["nothing", "reward", "advantage"]


class Offline(FromData):
    """A loss is the mean over responses of the sum over their tokens, as published."""

    reduction: Reduction = "sum"  # mean: a long response counts no more than a short one
    # Which responses an epoch draws, see `learner/functional/selection.py`; null: every good one once
    sampling_strategy: SamplingStrategy | None = None

    @property
    def worth(self) -> Worth:
        """What a response counts, and is drawn by: its reward R, or R - V, with V the value of its prompt."""
        return "reward"

    @property
    def needs_rewards(self) -> bool:
        return self.worth != "nothing"

    @property
    def needs_values(self) -> bool:
        return self.worth == "advantage"

    @property
    def only_positive(self) -> bool:
        """Whether a response that is worth 0 or less teaches nothing."""
        return False

    def worth_of(self, inputs: CreditInputs) -> Tensor:
        rewards_B = super().worth_of(inputs)
        if self.worth == "nothing":
            return rewards_B.new_zeros(len(rewards_B))
        return rewards_B if self.worth == "reward" else rewards_B - inputs.baseline_B

    def select_epoch(
        self,
        rewards_M: NDArray[np.floating],
        values_M: NDArray[np.floating],
        *,
        seed: int,
        epoch: int,
        good_M: NDArray[np.bool_] | None = None,
    ) -> Selection:
        """Which of the data set's M responses an epoch trains on, by `sampling_strategy`.

        Args:
            values_M: of each response's prompt. What the worth is not made of may be NaN.
            good_M: which are no rejected responses; None: all.

        Raises:
            LearnerError: a worth is NaN, or none is above 0 where that is needed.
        """
        zeros_M = np.zeros(len(rewards_M))
        worth_M = {"nothing": zeros_M, "reward": rewards_M, "advantage": rewards_M - values_M}[self.worth]
        chosen = select_epoch(worth_M, self.sampling_strategy, seed=seed, epoch=epoch, good_M=good_M)
        if self.only_positive:
            require_positive(worth_M[chosen.order_E], "advantages")
        return chosen

    def token_losses(self, inputs: LossInputs) -> Tensor:
        """(N,)"""
        raise NotImplementedError

    def loss(self, inputs: LossInputs) -> LossOutput:
        loss = self.over_responses(self.token_losses(inputs), inputs)
        return LossOutput(loss, {"loss/policy": loss.detach(), **self.metrics(inputs)})

    def over_responses(self, losses_N: Tensor, inputs: LossInputs) -> Tensor:
        """This micro-batch's share."""
        return over_responses(
            losses_N, inputs.lengths_N, num_rollouts=inputs.num_rollouts, reduction=self.reduction
        )

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        if self.worth != "advantage":
            return {}
        advantages_N, shares_N = inputs.advantages_N, shares(inputs, whole_responses=True)
        return {
            "advantage/mean": (advantages_N * shares_N).sum(),
            "share_positive": ((advantages_N > 0) * shares_N).sum(),
        }


class ImportanceWeighted(Offline):
    """A response, or a token, counts as much as it has become likelier than the reference made it."""

    whole_responses: ClassVar[bool] = True  # a weight is a product over all of a response's tokens

    # Weights stay within 1 ± this; null: no bounds. 0 is refused: in LoL-RL it means no bounds for r_lol
    # and a_lol, and weights of 1 for a_lol_seq (which here is a_lol_ref_free)
    ppo_clip: float | None = Field(default=0.9, gt=0)

    @property
    def needs_reference(self) -> bool:
        return True

    def ratios(self, inputs: LossInputs) -> Tensor:
        """π/π_ref, a constant a token (N,)."""
        return sequence_ratios(inputs.logprobs_N, reference_of(inputs), inputs.rows_N)

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        """Of responses where a weight is a response's, else of tokens."""
        ratios_N, shares_N = self.ratios(inputs), shares(inputs, whole_responses=self.whole_responses)
        found = {"ratio/mean": (ratios_N * shares_N).sum(), "ratio/max": ratios_N.max()}
        if self.ppo_clip is not None:
            found["clip_fraction"] = (((ratios_N - 1).abs() > self.ppo_clip) * shares_N).sum()
        return super().metrics(inputs) | found


def shares(inputs: LossInputs, *, whole_responses: bool) -> Tensor:
    """What a token counts in a mean over the minibatch's responses, or over its tokens, (N,)."""
    return token_weights(
        inputs.lengths_N,
        "sequence_mean" if whole_responses else "token_mean",
        num_tokens=inputs.num_tokens,
        num_rollouts=inputs.num_rollouts,
        max_tokens=inputs.max_tokens,
    )
