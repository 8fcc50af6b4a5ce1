"""Records that the learner and an algorithm exchange.

Shapes: _B rollouts, _T the model's tokens of a rollout, left-aligned, _N the model's tokens of a
micro-batch, flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """Batch of scored rollouts; `rewards_BT` are the task's rewards, without the KL penalty."""

    rewards_BT: Tensor
    kl_BT: Tensor  # the estimate of KL(π_old‖π_ref) that the settings ask for; 0 where KL is in the loss
    values_BT: Tensor
    mask_BT: Tensor
    positions_BT: Tensor  # of each token in its own turn: 0 begins one
    groups_B: Tensor  # rollouts of one prompt share a number
    bootstrap_B: Tensor  # the value of the truncated context; 0 where a rollout came to its end
    baseline_B: Tensor  # the reference policy's expected reward on the prompt; 0 if unknown
    kl_coefficient: float
    # min(1, π_old/μ) of a data set's tokens, 1 of the policy's own; None: all are its own
    traces_BT: Tensor | None = None
    truncated_B: Tensor | None = None  # rollouts that ended at the limit of tokens; None: none did
    max_tokens: int | None = None  # most tokens of a rollout; None: unknown
    reward_deviation: float = 1.0  # of the rewards of rollouts so far
    critic_is_new: bool = False  # no returns have told it their mean yet
    has_token_rewards: bool = False  # a reward said what single tokens earn
    cut_B: Tensor | None = None  # rollouts that end in the critic's value; None: those with a value


def expecting(inputs: CreditInputs, value: float) -> CreditInputs:
    """Return the inputs with `value` added to each value that a critic predicted."""
    cut_B = inputs.bootstrap_B != 0 if inputs.cut_B is None else inputs.cut_B
    return replace(
        inputs,
        values_BT=inputs.values_BT + value * inputs.mask_BT,
        bootstrap_B=inputs.bootstrap_B + value * cut_B,
    )


@dataclass(frozen=True, slots=True)
class Credit:
    advantages_BT: Tensor
    returns_BT: Tensor
    value_mask_BT: Tensor | None = None  # the tokens whose return trains the critic; None: all
    trains_B: Tensor | None = None  # the rollouts that the update trains on; None: all

    def trains_critic(self, mask_BT: Tensor) -> Tensor:
        """Return the mask, boolean (B, T), of those tokens of `mask_BT` that train the critic."""
        return mask_BT if self.value_mask_BT is None else self.value_mask_BT


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Numbers for the model's tokens of one micro-batch, and the size of its whole minibatch."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor
    old_values_N: Tensor
    entropies_N: Tensor | None
    kl_N: Tensor | None  # the KL term of the loss, with its gradient; None: no such term
    # Each token's response, numbered within the micro-batch: 0, 0, 0, 1, 1 … A response is all of the model's
    # tokens in a rollout; only with `whole_responses` a micro-batch is sure to have all of it
    rows_N: Tensor
    lengths_N: Tensor  # tokens of that response, all of them
    num_tokens: int  # of the whole minibatch: the denominator, so that splitting changes nothing
    num_rollouts: int  # of the whole minibatch
    max_tokens: int  # most tokens of a response
    kl_coefficient: float = 0.0
    # Truncated weights of tokens, and of whole responses, drawn from another distribution than π_old, see
    # `learner/off_policy.py`
    importance_N: Tensor | None = None
    importance_B: Tensor | None = None
    value_mask_N: Tensor | None = None  # the tokens whose return trains the critic; None: all
    num_values: int | None = None  # number of those in the whole minibatch; None: num_tokens
    ref_logprobs_N: Tensor | None = None  # None: there is no reference
    # Responses of a prompt, which are neighbouring rows, where the algorithm has `whole_groups`; else 1
    group_size: int = 1
    num_responses: int | None = None  # of this micro-batch; None: one more than the highest of `rows_N`


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Loss and metrics of a micro-batch, as shares that sum to the minibatch's values.

    A metric whose name ends in `/max` is not summed: its maximum is the minibatch's value.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]
