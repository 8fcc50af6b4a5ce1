"""Base of NLL, WBC, GOLD, R-LoL and A-LoL, which weight responses by reward or advantage.

Baheti et al. 2024 (arXiv 2305.14718); the losses are in `learner/functional/offline.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings
from learner.algorithms.from_data import LOL_RL_ADAMW, NO_KL, require_needs
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.algorithms.offline_metrics import advantage_metrics
from learner.functional.offline import Reduction, over_responses
from learner.functional.selection import SamplingStrategy, Selection, require_positive, select_epoch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from contracts.rollout import Rollout

Worth = Literal["nothing", "reward", "advantage"]


class Offline(Algorithm):
    """Offline algorithm whose loss is the mean over responses of the sum over their tokens, as published."""

    critic_learning_rate: ClassVar[None] = None  # there is no critic to train
    target_kl: ClassVar[None] = None  # there is no old policy to drift from
    kl: ClassVar[KLSettings] = NO_KL

    learning_rate: float = Field(default=2e-4, gt=0)
    num_epochs: int = Field(default=1, ge=1)  # passes over a batch; those over the data set are the run's
    minibatch_size: int | None = Field(default=16, ge=1)  # responses; None: the whole batch
    max_grad_norm: float | None = Field(default=0.3, gt=0)
    optimizer: OptimizerSettings = LOL_RL_ADAMW
    reduction: Reduction = "sum"  # mean: a long response counts no more than a short one
    # Which responses an epoch draws, see `learner/functional/selection.py`; null: every good one once
    sampling_strategy: SamplingStrategy | None = None

    @property
    def worth(self) -> Worth:
        """Return the name of a response's worth: its reward R, or its advantage R - V(prompt).

        The worth weights the response in the loss, and in the draw of an epoch.
        """
        return "reward"

    @property
    def needs_rewards(self) -> bool:
        return self.worth != "nothing"

    @property
    def needs_values(self) -> bool:
        return self.worth == "advantage"

    @property
    def only_positive(self) -> bool:
        """Return whether the algorithm trains only on responses with a worth above 0."""
        return False

    def credit(self, inputs: CreditInputs) -> Credit:
        worth_BT = self.worth_of(inputs)[:, None] * inputs.mask_BT
        return Credit(worth_BT, worth_BT)

    def worth_of(self, inputs: CreditInputs) -> Tensor:
        """Return each response's reward or advantage, as `worth` says, (B,)."""
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
            values_M: values of the responses' prompts; they may be NaN where `worth` does not use them.
            good_M: True for responses that are not rejected; None: all are good.

        Raises:
            LearnerError: a worth is NaN, or none is above 0 where one is needed.
        """
        zeros_M = np.zeros(len(rewards_M))
        worth_M = {"nothing": zeros_M, "reward": rewards_M, "advantage": rewards_M - values_M}[self.worth]
        chosen = select_epoch(worth_M, self.sampling_strategy, seed=seed, epoch=epoch, good_M=good_M)
        if self.only_positive:
            require_positive(worth_M[chosen.order_E], "advantages")
        return chosen

    def check(self, rollouts: Sequence[Rollout]) -> None:
        require_needs(self, rollouts)

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
