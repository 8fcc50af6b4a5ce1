"""Base of algorithms that learn from a data set, and checks of its responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.errors import LearnerError
from learner.algorithms.base import Algorithm, KLSettings, LossInputs, OptimizerSettings

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout

LOL_RL_ADAMW = OptimizerSettings(weight_decay=0.01, decays="all", eps=1e-6)  # arXiv 2305.14718
# An estimate of the KL needs a reference policy in memory. `a_lol_kl` has another KL instead.
NO_KL = KLSettings(placement="loss", coefficient=0.0)


class FromData(Algorithm):
    """Base of algorithms without critic and old policy. Defaults: LoL-RL's for adapters (2305.14718)."""

    critic_learning_rate: ClassVar[None] = None  # there is no critic to train
    target_kl: ClassVar[None] = None  # there is no old policy from which to drift
    kl: ClassVar[KLSettings] = NO_KL

    learning_rate: float = Field(default=2e-4, gt=0)
    num_epochs: int = Field(default=1, ge=1)  # passes over a batch; the run counts passes over the data set
    minibatch_size: int | None = Field(default=16, ge=1)  # responses; None: the whole batch
    max_grad_norm: float | None = Field(default=0.3, gt=0)
    optimizer: OptimizerSettings = LOL_RL_ADAMW

    def check(self, rollouts: Sequence[Rollout]) -> None:
        require_needs(self, rollouts)


def require_needs(algorithm: Algorithm, rollouts: Sequence[Rollout]) -> None:
    """Refuse responses that lack something that the algorithm needs.

    Raises:
        LearnerError: responses lack something; the message names it and counts them.
    """
    if algorithm.needs_rewards:
        require_rewards(rollouts)
    if algorithm.needs_values:
        require_values(rollouts)
    if algorithm.needs_reference:
        require_reference(rollouts)


def require_rewards(rollouts: Sequence[Rollout]) -> None:
    """Check that each response has a reward.

    Raises:
        LearnerError: a reward is missing, infinite or NaN.
    """
    unscored = [all(turn.reward is None for turn in rollout.turns) for rollout in rollouts]
    known = [
        None if lacks else rollout.total_reward for rollout, lacks in zip(rollouts, unscored, strict=True)
    ]
    require_known(rollouts, known, "reward")


def require_values(rollouts: Sequence[Rollout]) -> None:
    """Check that each prompt has a baseline, the reference policy's expected reward on it.

    Raises:
        LearnerError: a baseline is missing, infinite or NaN.
    """
    require_known(rollouts, [rollout.baseline for rollout in rollouts], "value of its prompt")


def require_known(rollouts: Sequence[Rollout], numbers: Sequence[float | None], what: str) -> None:
    missing = [i for i, number in enumerate(numbers) if number is None]
    wrong = [i for i, number in enumerate(numbers) if number is not None and not math.isfinite(number)]
    if missing or wrong:
        first = rollouts[min(missing + wrong)]
        raise LearnerError(
            f"of {len(rollouts)} responses {len(missing)} have no {what} and {len(wrong)} one that is NaN or "
            f"infinite, the first to prompt {first.prompt.id} (lease {first.lease_id}); expected a finite "
            "one of each: score them again, or leave them out"
        )


def require_reference(rollouts: Sequence[Rollout]) -> None:
    """Check that the responses have the reference policy's log-probabilities.

    Raises:
        LearnerError: all log-probabilities are 0.
    """
    if not any(any(turn.behavior_logprobs) for rollout in rollouts for turn in rollout.turns):
        raise LearnerError(
            f"none of {len(rollouts)} responses has log-probabilities of the reference; expected them as "
            "each turn's behavior_logprobs, from one pass of the reference over the data"
        )


def reference_of(inputs: LossInputs) -> Tensor:
    """Return log π_ref of the micro-batch's tokens, (N,)."""
    assert inputs.ref_logprobs_N is not None, "data must bring the reference's log-probabilities"
    return inputs.ref_logprobs_N
