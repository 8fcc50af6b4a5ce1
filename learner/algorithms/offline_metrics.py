"""Metrics of algorithms that weight a data set's responses, as shares of the minibatch's values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.inputs import LossInputs
from learner.functional.aggregation import token_weights

if TYPE_CHECKING:
    from torch import Tensor


def advantage_metrics(inputs: LossInputs) -> dict[str, Tensor]:
    """Return two scalars: the responses' mean advantage, and the share of advantages above 0."""
    advantages_N, shares_N = inputs.advantages_N, shares(inputs, whole_responses=True)
    return {
        "advantage/mean": (advantages_N * shares_N).sum(),
        "share_positive": ((advantages_N > 0) * shares_N).sum(),
    }


def ratio_metrics(
    inputs: LossInputs, ratios_N: Tensor, ppo_clip: float | None, *, whole_responses: bool
) -> dict[str, Tensor]:
    """Measure the weights π/π_ref, of responses if `whole_responses`, otherwise of tokens."""
    shares_N = shares(inputs, whole_responses=whole_responses)
    metrics = {"ratio/mean": (ratios_N * shares_N).sum(), "ratio/max": ratios_N.max()}
    if ppo_clip is not None:
        metrics["clip_fraction"] = (((ratios_N - 1).abs() > ppo_clip) * shares_N).sum()
    return metrics


def shares(inputs: LossInputs, *, whole_responses: bool) -> Tensor:
    """Return each token's weight in a mean over the minibatch's responses, or over its tokens, (N,)."""
    return token_weights(
        inputs.lengths_N,
        "sequence_mean" if whole_responses else "token_mean",
        num_tokens=inputs.num_tokens,
        num_rollouts=inputs.num_rollouts,
        max_tokens=inputs.max_tokens,
    )
