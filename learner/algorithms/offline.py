"""Base of NLL, WBC, GOLD, R-LoL and A-LoL, which weight responses by reward or advantage.

Baheti et al. 2024 (arXiv 2305.14718); the losses are in `learner/functional/offline.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from learner.algorithms.from_data import FromData
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.algorithms.offline_metrics import advantage_metrics
from learner.functional.offline import Reduction, over_responses
from learner.functional.selection import SamplingStrategy, Selection, require_positive, select_epoch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Worth = Literal["nothing", "reward", "advantage"]


class Offline(FromData):
    """Offline algorithm whose loss is the mean over responses of the sum over their tokens, as published."""

    weighs_by_advantage: ClassVar[bool] = False  # A-LoL and its variants

    reduction: Reduction = "sum"  # mean: a long response counts no more than a short one
    # How an epoch samples responses (`learner/functional/selection.py`); null: each good response once
    sampling_strategy: SamplingStrategy | None = None

    @property
    def worth(self) -> Worth:
        """Return the name of a response's worth: its reward R, or its advantage R - V(prompt).

        The worth weights the response in the loss, and in the draw of an epoch.
        """
        return "advantage" if self.weighs_by_advantage else "reward"

    @property
    def needs_rewards(self) -> bool:
        return self.worth != "nothing"

    @property
    def needs_values(self) -> bool:
        return self.worth == "advantage"

    @property
    def only_positive(self) -> bool:
        """Return whether the algorithm trains only on responses with a worth above 0."""
        return self.weighs_by_advantage

    def credit(self, inputs: CreditInputs) -> Credit:
        worth_BT = self.worth_of(inputs)[:, None] * inputs.mask_BT
        return Credit(worth_BT, worth_BT)

    def worth_of(self, inputs: CreditInputs) -> Tensor:
        """Return each response's reward, advantage or 0, (B,), as `worth` chooses."""
        rewards_B = inputs.rewards_BT.sum(-1)
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
        """Choose which of the data set's M responses an epoch trains on, by `sampling_strategy`.

        Args:
            values_M: values of the responses' prompts; they may be NaN if `worth` does not use them.
            good_M: False for rejected responses; None: all are good.

        Raises:
            LearnerError: a worth is NaN, or the strategy needs one above 0 but none is.
        """
        zeros_M = np.zeros(len(rewards_M))
        worth_M = {"nothing": zeros_M, "reward": rewards_M, "advantage": rewards_M - values_M}[self.worth]
        chosen = select_epoch(worth_M, self.sampling_strategy, seed=seed, epoch=epoch, good_M=good_M)
        if self.only_positive:
            require_positive(worth_M[chosen.order_E], "advantages")
        return chosen

    @abstractmethod
    def token_losses(self, inputs: LossInputs) -> Tensor:
        """Return the loss of each token, (N,)."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        loss = self.over_responses(self.token_losses(inputs), inputs)
        return LossOutput(loss, {"loss/policy": loss.detach(), **self.metrics(inputs)})

    def over_responses(self, losses_N: Tensor, inputs: LossInputs) -> Tensor:
        """Return this micro-batch's share of the minibatch's loss."""
        return over_responses(
            losses_N, inputs.lengths_N, num_rollouts=inputs.num_rollouts, reduction=self.reduction
        )

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        return advantage_metrics(inputs) if self.worth == "advantage" else {}
