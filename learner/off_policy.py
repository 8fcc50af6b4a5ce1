"""Importance weights of responses that another policy μ drew: an engine, older weights, or a data set's.

π_old is the policy before this update, as the learner computes it. The policy's rollouts get weights if an
engine in bfloat16 drew them, or if an update happened since. The ratio π/π_old is clipped separately from the
weight π_old/μ (decoupled PPO; Hilton et al. 2022, arXiv 2110.00641; as in AReaL, arXiv 2505.24298).
arXiv 2505.24298). `learner/mismatch_settings.py` names the papers on engines.

A data set's responses count as drawn from μ, the model of their log-probabilities. With a critic, a token has
weight min(cap, π_old/μ). Its trace min(1, π_old/μ) cuts off later rewards of the other policy (V-trace,
Espeholt et al. 2018, arXiv 1802.01561). Without a critic, a response has one advantage and one weight:
min(cap, π_old(y)/μ(y)).
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from learner.batches.batching import Batch, MicroBatch
from learner.functional.aggregation import sum_by_response
from learner.functional.kl import k3
from learner.functional.support import SamplingDistribution
from learner.mismatch_settings import MismatchSettings
from learner.passes.scoring import ScoredBatch
from learner.settings import LearnerSettings

ImportanceLevel = Literal[
    "token", "response"
]  # a token's weight: its ratio, or the ratio of its whole response


@dataclass(frozen=True, slots=True)
class Correction:
    """Weights and masks of the policy's rollouts.

    Example: `Correction("token", MismatchSettings(mask_above=5.0))`
    """

    level: ImportanceLevel | None  # None: weights of unmasked tokens are 1
    masks: MismatchSettings = field(default_factory=MismatchSettings)

    def weights(
        self,
        log_ratio_N: Tensor,
        responses_N: Tensor,
        cap: float,
        *,
        by_mean: bool = False,
        num_responses: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the weights of tokens (N,) and of responses (B,) from log π_old/μ of each token.

        Args:
            responses_N: the response of each token, numbered from 0 in order.
            by_mean: whether a response's ratio is the geometric mean of its tokens' ratios, not the product.
            num_responses: B, as for `sum_by_response`.
        """
        responses = responses_N, num_responses
        log_ratio_B = sum_by_response(log_ratio_N, *responses)
        if by_mean:  # a product over thousands of tokens would be near 0
            log_ratio_B = log_ratio_B / sum_by_response(torch.ones_like(log_ratio_N), *responses)
        weights_B = log_ratio_B.exp().clamp(max=cap)
        if self.level == "response":
            weights_N = weights_B[responses_N]
        elif self.level == "token":
            weights_N = log_ratio_N.exp().clamp(max=cap)
        else:
            weights_N, weights_B = torch.ones_like(log_ratio_N), torch.ones_like(weights_B)
        kept_N, kept_B = self.kept(log_ratio_N, *responses)
        return weights_N * kept_N, weights_B * kept_B

    def kept(
        self, log_ratio_N: Tensor, responses_N: Tensor, num_responses: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens (N,) and responses (B,) that no bound masks; arguments as in `weights`."""
        bounds, ratio_N = self.masks, log_ratio_N.exp()
        lengths_B = sum_by_response(torch.ones_like(log_ratio_N), responses_N, num_responses)
        mean_B = sum_by_response(log_ratio_N, responses_N, num_responses) / lengths_B
        kept_B = torch.ones_like(mean_B, dtype=torch.bool)
        if bounds.mask_responses_beyond is not None:
            kept_B = mean_B.abs() <= math.log(bounds.mask_responses_beyond)
        kept_N = (ratio_N >= (bounds.mask_below or 0.0)) & (ratio_N <= (bounds.mask_above or math.inf))
        return kept_N & kept_B[responses_N], kept_B


def rounds(settings: LearnerSettings, distribution: SamplingDistribution, is_rounded: bool) -> bool:
    """Return whether engine and learner compute the same distribution except for rounding.

    Args:
        is_rounded: whether one of them computes in bfloat16 or less.
    """
    return is_rounded and settings.behavior == "exact" and distribution.ignored_mask is None


def correction_of(
    settings: LearnerSettings, batch: Batch, version: int, *, rounds: bool
) -> Correction | None:
    """Return how an update from `version` corrects the policy's rollouts; None: π_old drew them.

    Args:
        rounds: the result of `rounds`.
    """
    mismatch = settings.mismatch
    level: ImportanceLevel | Literal["none"]
    if settings.behavior == "importance":
        level = "token"
    elif batch.oldest is not None and batch.oldest < version:
        level = settings.staleness_correction
    elif mismatch.weights == "auto":
        level = "token" if rounds else "none"
    else:
        level = mismatch.weights
    if level == "none" and not mismatch.masks:
        return None
    return Correction(None if level == "none" else level, mismatch)


def traces(batch: Batch, scored: ScoredBatch) -> Tensor | None:
    """Return min(1, π_old/μ) for the data's tokens and 1 for the policy's; None: there is no data."""
    if batch.from_data_B is None or scored.entropies_BT is None:
        return None
    ratios_BT = (scored.old_logprobs_BT - batch.behavior_logprobs_BT).exp().clamp(max=1.0)
    return ratios_BT.where(batch.from_data_B[:, None], 1.0)


def importance(
    batch: Batch,
    scored: ScoredBatch,
    micro: MicroBatch,
    *,
    cap: float,
    correction: Correction | None,
    by_token: bool,
    by_mean: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Return truncated weights π_old/μ of a micro-batch's tokens (N,) and of its responses (B,).

    A result is None if all its weights are 1.

    Args:
        correction: for the policy's rollouts. None: their weights are 1.
        by_token: whether a token of the data has its weight; otherwise it has its response's.
        by_mean: as in `Correction.weights`.
    """
    if scored.entropies_BT is None or (correction is None and batch.from_data_B is None):
        return None, None
    log_ratio_N = micro.pick(scored.old_logprobs_BT) - micro.pick(batch.behavior_logprobs_BT)
    count = micro.num_responses
    own_N, own_B = (correction or Correction(None)).weights(
        log_ratio_N, micro.responses_N, cap, by_mean=by_mean, num_responses=count
    )
    if batch.from_data_B is None:
        return own_N, own_B
    is_data_N = batch.from_data_B[micro.rows_N]
    is_data_B = batch.from_data_B[micro.rows_R]
    data_N, data_B = Correction("token" if by_token else "response").weights(
        log_ratio_N, micro.responses_N, cap, by_mean=by_mean, num_responses=count
    )
    return data_N.where(is_data_N, own_N), data_B.where(is_data_B, own_B)


def metrics(batch: Batch, scored: ScoredBatch, *, cap: float, by_token: bool) -> dict[str, float]:
    """Measure the distance from the data: mean weight, truncated share, KL(μ‖π_old) per token."""
    if batch.from_data_B is None or scored.entropies_BT is None:
        return {}
    mask_BT = batch.mask_BT & batch.from_data_B[:, None]
    behavior_N, old_N = batch.behavior_logprobs_BT[mask_BT], scored.old_logprobs_BT[mask_BT]
    log_ratios = old_N - behavior_N
    if not by_token:
        differences_BT = (scored.old_logprobs_BT - batch.behavior_logprobs_BT) * mask_BT
        log_ratios = differences_BT.sum(-1)[batch.from_data_B]
    weights = log_ratios.exp()
    return {
        "data/weight/mean": float(weights.clamp(max=cap).mean()),
        "data/weight/truncated": float((weights > cap).float().mean()),
        "data/kl": float(k3(behavior_N, old_N).mean()),
    }
