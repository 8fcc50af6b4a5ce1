"""Records that the learner and an algorithm exchange.

Shapes: _B rollouts, _T generated tokens of a rollout, left-aligned, _N generated tokens of a micro-batch,
    flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """Separate rewards of a weighted sum: _K of them, in float64.

    Example: a reward of weight 2 gives a rollout 1, and another reward says nothing about it:
    `RewardTerms(torch.tensor([[1.0, nan]]), torch.tensor([[2.0, 0.0]]))`
    """

    values_BK: Tensor  # NaN if a reward says nothing about the rollout
    weights_BK: Tensor  # 0 for NaN


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """Batch of scored rollouts; `rewards_BT` are the task's rewards, without the KL penalty."""

    rewards_BT: Tensor
    kl_BT: Tensor  # the settings' estimate of KL(π_old‖π_ref); 0 if the KL is in the loss
    values_BT: Tensor
    mask_BT: Tensor
    positions_BT: Tensor  # index of each token in its turn; a turn begins at 0
    groups_B: Tensor  # rollouts of one prompt share a number
    bootstrap_B: Tensor  # value of the truncated context; 0 after a true end
    baseline_B: Tensor  # the reference policy's expected reward on the prompt; 0 if unknown
    kl_coefficient: float
    # min(1, π_old/μ) of a data set's tokens, 1 of the policy's tokens; None: the policy drew all
    traces_BT: Tensor | None = None
    truncated_B: Tensor | None = None  # rollouts that ended at the limit of tokens; None: no rollout did
    max_tokens: int | None = None  # most tokens of a rollout; None: unknown
    reward_deviation: float = 1.0  # standard deviation of all rollouts' rewards so far
    critic_is_new: bool = False  # it has not yet learned the mean of returns
    has_token_rewards: bool = False  # whether a reward scored single tokens
    cut_B: Tensor | None = None  # rollouts that end in the critic's value; None: those with a value
    terms: RewardTerms | None = None  # None: rollouts have only their whole reward
    entropies_BT: Tensor | None = None  # π_old's entropy at each token, if `reads_entropies`
    # log p/π_old of each token's span, with p from a remote teacher, 0 without a score; None: it scored no
    # rollout
    teacher_gain_BT: Tensor | None = None


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
    value_mask_BT: Tensor | None = None  # tokens whose return trains the critic; None: all
    trains_B: Tensor | None = None  # rollouts that the update trains on; None: all

    def trains_critic(self, mask_BT: Tensor) -> Tensor:
        """Return the mask, boolean (B, T), of the tokens of `mask_BT` that train the critic."""
        return mask_BT if self.value_mask_BT is None else self.value_mask_BT


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Numbers for the generated tokens of one micro-batch, and the size of its whole minibatch."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor
    old_values_N: Tensor
    entropies_N: Tensor | None
    kl_N: Tensor | None  # the KL term of the loss, with gradient; None: no KL term
    # Each token's response, numbered within the micro-batch: 0, 0, 0, 1, 1 … A response is all generated
    # tokens of a rollout; a micro-batch surely has all of it only with `whole_responses`
    rows_N: Tensor
    lengths_N: Tensor  # number of all tokens of that response
    num_tokens: int  # tokens of the whole minibatch, as the denominator: splitting then changes nothing
    num_rollouts: int  # rollouts of the whole minibatch
    max_tokens: int  # limit of a response
    kl_coefficient: float = 0.0
    entropy_coefficient: float | None = None  # current factor of the bonus; None: the algorithm's option
    # Truncated weights of tokens, and of whole responses, if another distribution than π_old drew them; see
    # `learner/off_policy.py`
    importance_N: Tensor | None = None
    importance_B: Tensor | None = None
    value_mask_N: Tensor | None = None  # tokens whose return trains the critic; None: all
    num_values: int | None = None  # number of these tokens in the whole minibatch; None: num_tokens
    ref_logprobs_N: Tensor | None = None  # None: there is no reference
    # With `whole_groups`: number of a prompt's responses, which are neighbouring rows; else 1
    group_size: int = 1
    num_responses: int | None = None  # responses in this micro-batch; None: the highest of `rows_N` plus 1
    # Divergence from the policy as teacher, with gradient, 0 if it had nothing to read; None: no such teacher
    taught_N: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Loss and metrics of a micro-batch, as shares that sum to the minibatch's values.

    A metric whose name ends in `/max` is not summed: its maximum is the minibatch's value.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]
