"""What an algorithm is: credit for tokens, and a loss that is a share of the batch's.

Shapes: _B rollouts, _T the model's tokens of a rollout, left-aligned, _N the model's tokens of a
micro-batch, flat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from contracts.settings import Settings
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from contracts.rollout import MaskRule, Rollout
    from learner.functional.selection import Selection


LearnsFrom = Literal["rollouts", "references", "data"]
MixesData = Literal["weighted", "plainly"]
Decays = Literal["matrices", "all_but_biases", "all"]


class OptimizerSettings(Settings):
    """AdamW, or RMSprop as A2C was published with."""

    name: Literal["adamw", "rmsprop"] = "adamw"
    weight_decay: float = Field(default=1e-6, ge=0)
    # matrices: neither biases nor norms decay, as in Hugging Face's Trainer; all_but_biases: norms decay too,
    # unless they are called LayerNorm, as in RL4LMs' policies; all: as in LoL-RL
    decays: Decays = "matrices"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    alpha: float = Field(default=0.99, ge=0, lt=1)  # rmsprop: smoothing of the squared gradient
    eps: float = Field(default=1e-8, gt=0)


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """One batch of scored rollouts; `rewards_BT` are the task's, without the KL penalty."""

    rewards_BT: Tensor
    kl_BT: Tensor  # the estimate of KL(π_old‖π_ref) that the settings ask for; 0 where KL is in the loss
    values_BT: Tensor
    mask_BT: Tensor
    positions_BT: Tensor  # of each token in its own turn: 0 begins one
    groups_B: Tensor  # rollouts of one prompt share a number
    bootstrap_B: Tensor  # the value of what would have come next; 0 where a rollout came to its end
    baseline_B: Tensor  # what the reference is expected to earn on the prompt; 0 where nobody said
    kl_coefficient: float
    # min(1, π_old/μ) of tokens that came with a data set, 1 of the policy's own; None: all are its own
    traces_BT: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    advantages_BT: Tensor
    returns_BT: Tensor
    value_mask_BT: Tensor | None = None  # the tokens whose return trains the critic; None: all

    def trains_critic(self, mask_BT: Tensor) -> Tensor:
        """Boolean (B, T), of the tokens that `mask_BT` has."""
        return mask_BT if self.value_mask_BT is None else self.value_mask_BT


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The model's tokens of one micro-batch, and the size of the whole minibatch it belongs to."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor
    old_values_N: Tensor
    entropies_N: Tensor | None
    kl_N: Tensor | None  # the KL term of the loss, with its gradient; None: no such term
    # Which of the micro-batch's responses each token belongs to: 0, 0, 0, 1, 1 … A response is all that the
    # model said in a rollout; all of it is here where the algorithm has `whole_responses`, else maybe a part
    rows_N: Tensor
    lengths_N: Tensor  # tokens of that response, all of them
    num_tokens: int  # of the whole minibatch: the denominator, so that splitting changes nothing
    num_rollouts: int  # of the whole minibatch
    max_tokens: int  # that a response may have
    kl_coefficient: float = 0.0
    # Truncated weights of tokens, and of whole responses, that were drawn from another distribution than
    # π_old, see `learner/off_policy.py`
    importance_N: Tensor | None = None
    importance_B: Tensor | None = None
    value_mask_N: Tensor | None = None  # the tokens whose return trains the critic; None: all
    num_values: int | None = None  # of the whole minibatch, how many those are; None: num_tokens
    ref_logprobs_N: Tensor | None = None  # None: no reference was asked
    # Responses of a prompt, which are neighbouring rows, where the algorithm has `whole_groups`; else 1
    group_size: int = 1


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss` and every metric are shares: summed over a minibatch's micro-batches they give its value.

    Of a metric whose name ends in `/max` the largest counts instead.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Algorithm(Protocol):
    """A settings class with these fields and methods; its defaults are the published method.

    The properties up to `kl` are its options.
    """

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
    def target_kl(self) -> float | None: ...  # stops the epochs; the loss then says `approx_kl`

    @property
    def optimizer(self) -> OptimizerSettings: ...

    @property
    def kl(self) -> KLSettings: ...

    @property
    def online(self) -> bool: ...  # scores rollouts (old log-probabilities, values, reference) first

    @property
    def uses_critic(self) -> bool: ...

    @property
    def needs_entropy(self) -> bool: ...  # with its gradient

    def credit(self, inputs: CreditInputs) -> Credit: ...

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor: ...  # over the whole minibatch

    def loss(self, inputs: LossInputs) -> LossOutput: ...


def learns_from(algorithm: Any) -> LearnsFrom:
    """Where what an algorithm trains on comes from; it says so itself, as a class variable of that name.

    - rollouts    the model's own, generated and scored
    - references  the prompts' references, or an expert's play
    - data        responses of a data set, with rewards, the reference's log-probabilities and its values
                  known before: nothing is generated, no reference is loaded
    """
    found: LearnsFrom = getattr(algorithm, "learns_from", "rollouts")
    return found


def mixes_data(algorithm: Any) -> MixesData | None:
    """How an algorithm takes responses that somebody else wrote, beside what it learns from.

    It says so itself, as a class variable of that name; None: not at all.

    - weighted    by π_old/μ: they are taken to be drawn from μ, whose log-probabilities they come with
    - plainly     as they are: what imitates minds not who wrote it
    """
    found: MixesData | None = getattr(algorithm, "mixes_data", None)
    return found


@runtime_checkable
class Checks(Protocol):
    """What an algorithm has besides that can't work with every batch."""

    def check(self, rollouts: Sequence[Rollout]) -> None: ...  # LearnerError: what is missing, and how often


@runtime_checkable
class Masks(Protocol):
    """What an algorithm has besides, whose rollouts a mask model restricts (NLPO)."""

    def mask_rule(self) -> MaskRule: ...

    def syncs_mask(self, version: int) -> bool: ...  # whether the mask becomes a copy of that version

    def renormalizes(self) -> bool: ...  # False: ratios are the whole softmax's, as RL4LMs has it


@runtime_checkable
class Selects(Protocol):
    """What an algorithm has besides that trains on some of its rollouts only."""

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]: ...  # (to train on now, to keep for later)


@runtime_checkable
class SelectsExamples(Protocol):
    """What an algorithm has besides that says which examples of a data set it learns from."""

    def select_epoch(
        self,
        rewards_M: NDArray[np.floating],
        values_M: NDArray[np.floating],
        *,
        seed: int,
        epoch: int,
        good_M: NDArray[np.bool_] | None,
    ) -> Selection: ...


OPTIONAL = (Checks, Masks, Selects, SelectsExamples)
