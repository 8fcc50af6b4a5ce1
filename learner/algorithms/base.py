"""Base of every algorithm: it gives tokens credit and defines the loss of a micro-batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.algorithms.traits import Divergence, OwnTeacher, Traits
from learner.optimization.entropy_control import EntropyRule
from learner.optimization.kl_control import KLSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from contracts.rollout import MaskRule, Rollout
    from learner.functional.selection import Selection

__all__ = [
    "Algorithm",
    "Credit",
    "CreditInputs",
    "KLSettings",
    "LossInputs",
    "LossOutput",
    "OptimizerSettings",
    "OwnTeacher",
    "Traits",
]

Decays = Literal["matrices", "all_but_biases", "all"]
LossOver = Literal["response", "text"]
ValueLevel = Literal["token", "action_first", "action_mean"]

# Every algorithm has these as fields, or as class variables if its method fixes them.
OPTIONS = (
    *("learning_rate", "critic_learning_rate", "num_epochs", "minibatch_size"),
    *("max_grad_norm", "target_kl", "optimizer", "kl"),
)


class OptimizerSettings(Settings):
    """Settings of AdamW, or of RMSprop as in A2C's publication."""

    name: Literal["adamw", "rmsprop"] = "adamw"
    weight_decay: float = Field(default=1e-6, ge=0)
    # matrices: neither biases nor norms decay, as in Hugging Face's Trainer; all_but_biases: norms decay,
    #     too, unless they are named LayerNorm, as in RL4LMs' policies; all: as in LoL-RL
    decays: Decays = "matrices"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    alpha: float = Field(default=0.99, ge=0, lt=1)  # rmsprop: smoothing of the squared gradient
    eps: float = Field(default=1e-8, gt=0)


class Algorithm(Settings):
    """Base of algorithms: a settings class whose fields are options, with the published method as defaults.

    A subclass declares its `traits` and `OPTIONS`, and defines `credit` and `loss`. The other methods suit
    most algorithms; a subclass overrides those that its options change.
    """

    traits: ClassVar[Traits]

    if TYPE_CHECKING:  # properties at run time would hide fields with these names

        @property
        def learning_rate(self) -> float: ...

        @property
        def critic_learning_rate(self) -> float | None: ...  # None: learning_rate

        @property
        def num_epochs(self) -> int: ...

        @property
        def minibatch_size(self) -> int | None: ...  # rollouts; None: the whole batch

        @property
        def max_grad_norm(self) -> float | None: ...  # None: no clipping

        @property
        def target_kl(self) -> float | None: ...  # stops the epochs; the loss then reports `approx_kl`

        @property
        def optimizer(self) -> OptimizerSettings: ...

        @property
        def kl(self) -> KLSettings: ...

    @abstractmethod
    def credit(self, inputs: CreditInputs) -> Credit:
        """Return advantages and returns of a whole batch."""

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        """Return the advantages of one minibatch; PPO whitens them here."""
        return advantages_N

    @abstractmethod
    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the loss of one micro-batch, as a share of its minibatch's loss."""

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Return two lists: rollouts to train on now (here all), and rollouts to keep for later (none)."""
        return list(rollouts), []

    def teaching(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts that an update can learn from; here all. `refills` replaces the others."""
        return list(rollouts)

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Check that the loss can work with these rollouts.

        Raises:
            LearnerError: the rollouts lack something; the message names it.
        """

    def select_epoch(
        self,
        rewards_M: NDArray[np.floating],
        values_M: NDArray[np.floating],
        *,
        seed: int,
        epoch: int,
        good_M: NDArray[np.bool_] | None,
    ) -> Selection:
        """Choose the responses of an epoch from a data set's M: each response that is not rejected, once."""
        import numpy as np

        from learner.functional.selection import select_epoch

        return select_epoch(np.zeros(len(rewards_M)), None, seed=seed, epoch=epoch, good_M=good_M)

    # For algorithms with the trait `masks`

    def mask_rule(self) -> MaskRule:
        """Return the rule by which the mask model allows tokens."""
        raise NotImplementedError(f"{type(self).__name__} has traits.masks; add a method mask_rule()")

    def syncs_mask(self, version: int) -> bool:
        """Return whether a copy of the policy replaces the mask model at this version."""
        return False

    def renormalizes(self) -> bool:
        """Return whether ratios use the masked distribution; False: the whole softmax, as in RL4LMs."""
        return True

    def least_minibatch(self, num_rollouts: int, longest: int) -> int:
        """Return the fewest rollouts of a minibatch except the last; `longest`: most tokens of a rollout."""
        if self.minibatch_counts is None:
            return self.minibatch_size or num_rollouts
        return min(num_rollouts, math.ceil(self.minibatch_counts / longest))

    # Facts that options can change

    @property
    def minibatch_counts(self) -> int | None:
        """Return how many generated tokens fill a minibatch; None: `minibatch_size` counts rollouts."""
        return None

    @property
    def selects(self) -> bool:
        """Return whether the algorithm's `select` may leave rollouts out of an update."""
        return type(self).select is not Algorithm.select

    @property
    def leaves_out_truncated(self) -> bool:
        """Return whether the update leaves out responses that the limit of tokens cut off."""
        return False

    @property
    def refills(self) -> int:
        """Return how often an iteration may ask for prompts to replace groups that teach nothing."""
        return 0

    @property
    def divides_rollouts(self) -> bool:
        """Return whether it divides rollouts and learns from each part as a rollout."""
        return False

    @property
    def needs_entropy(self) -> bool:
        """Return whether the loss needs entropies, with their gradient."""
        return False

    @property
    def reads_entropies(self) -> bool:
        """Return whether `credit` reads the entropies of π_old, so that scoring must compute them."""
        return False

    @property
    def entropy_rule(self) -> EntropyRule:
        """Return how the learner changes the entropy bonus's coefficient; here there is no bonus."""
        return EntropyRule(0.0)

    @property
    def own_teacher(self) -> OwnTeacher | None:
        """Return the settings of the policy as its own teacher; None: it is none."""
        return None

    @property
    def asks_teacher(self) -> bool:
        """Return whether a remote teacher scores rollouts before an update."""
        return False

    @property
    def teacher_divergence(self) -> Divergence:
        """Return the measure between the policy and a remote teacher's likeliest tokens."""
        return "reverse"

    @property
    def averages(self) -> bool:
        """Return whether the learner keeps an average of the policy's weights as a teacher."""
        return self.own_teacher is not None and self.own_teacher.weights == "average"

    @property
    def needs_rewards(self) -> bool:
        """Return whether each response of a data set needs a reward."""
        return False

    @property
    def needs_values(self) -> bool:
        """Return whether each response of a data set needs the value of its prompt."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Return whether each response of a data set needs the reference policy's log-probabilities."""
        return self.traits.reference

    @property
    def loss_over(self) -> LossOver:
        """Return the tokens in the loss: the generated tokens, or the whole text with the prompt."""
        return "response"

    @property
    def scores_first_token(self) -> bool:
        """Return whether a response's first token is in the loss; only a causal model can leave it out."""
        return True

    @property
    def credits(self) -> ValueLevel:
        """Return the unit of an advantage: a token, or a turn (with its first value or their mean)."""
        return "token"

    @property
    def uses_token_rewards(self) -> bool:
        """Return whether a token gets credit for its and later tokens' rewards; False: for the sum."""
        sums = self.traits.whole_responses or self.traits.imitates or self.credits != "token"
        return self.traits.online and not sums

    @property
    def turn_discount(self) -> float | None:
        """Return the factor on a reward for each turn of delay; None: no factor."""
        return None

    @property
    def bootstraps(self) -> bool:
        """Return whether a truncated rollout's future counts as the critic's value; False: as 0."""
        return False

    @property
    def normalizes_values(self) -> bool:
        """Return whether the critic predicts returns normalised by all returns so far."""
        return False
