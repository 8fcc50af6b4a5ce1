"""Measure on a scored batch how far the policy is from the reference and the sampler from the learner."""

from dataclasses import dataclass

import torch

from contracts.errors import LearnerError
from learner.algorithms.base import Credit
from learner.batching import Batch
from learner.functional.kl import k1, k3
from learner.off_policy import Correction
from learner.passes.scoring import ScoredBatch


@dataclass(frozen=True, slots=True)
class MeasuredKL:
    """KL to the reference policy, by the estimate k1 on tokens that the policy drew.

    Example: two responses with 3 nats in 6 tokens: `MeasuredKL(per_token=0.5, per_sequence=1.5, num_own=2)`
    """

    per_token: float
    per_sequence: float
    num_own: int  # responses that the policy itself generated


def measured_kl(batch: Batch, scored: ScoredBatch) -> MeasuredKL | None:
    """Return the KL to the reference policy.

    Returns: None if the reference did not score the batch, or the policy generated no response of it.
    """
    own_BT = batch.own_BT
    if (chosen := scored.rollouts) is not None:
        compared_B = torch.zeros_like(own_BT[:, 0])
        compared_B[chosen.start : chosen.stop : chosen.step] = True
        own_BT = own_BT & compared_B[:, None]
    num_own = int(own_BT.any(-1).sum())
    if not num_own or not scored.has_reference:
        return None
    total = float((k1(scored.old_logprobs_BT, scored.ref_logprobs_BT) * own_BT).sum())
    return MeasuredKL(total / int(own_BT.sum()), total / num_own, num_own)


def sampler_metrics(
    batch: Batch, scored: ScoredBatch, version: int, correction: Correction | None = None
) -> dict[str, float]:
    """Return how far the sampler's distribution is from the learner's, and how old its weights were.

    - mismatch/kl         KL(μ‖π_old), nats a token, by the estimate k3
    - mismatch/max_ratio  the largest factor between the two probabilities of a token, at least 1
    - mismatch/masked     share of tokens that `learner.mismatch` leaves out, where it may leave out some
    """
    mask_BT = batch.own_BT
    if scored.entropies_BT is None or not bool(mask_BT.any()):
        return {}
    behavior_N, old_N = batch.behavior_logprobs_BT[mask_BT], scored.old_logprobs_BT[mask_BT]
    masked = {}
    if correction is not None and correction.masks.masks:
        _rows, responses_N = mask_BT.nonzero()[:, 0].unique_consecutive(return_inverse=True)
        kept_N, _kept_B = correction.kept(old_N - behavior_N, responses_N)
        masked["mismatch/masked"] = 1.0 - float(kept_N.float().mean())
    return {
        "entropy": float(scored.entropies_BT[mask_BT].mean()),
        "mismatch/kl": float(k3(behavior_N, old_N).mean()),
        "mismatch/max_ratio": float((behavior_N - old_N).abs().max().double().exp()),
        **masked,
        "staleness/mean": float((version - batch.versions_BT[mask_BT]).float().mean()),
        "staleness/max": float((version - batch.versions_BT[mask_BT]).max()),
    }


def num_trained(batch: Batch, credit: Credit) -> int:
    """Return how many rollouts the update trains on.

    Raises:
        LearnerError: credit leaves none of them.
    """
    count = batch.num_rollouts if credit.trains_B is None else int(credit.trains_B.sum())
    if not count:
        raise LearnerError(
            f"all {batch.num_rollouts} responses were cut off at the limit of tokens, and "
            "algorithm.filter_truncated=true leaves such out; expected a higher rollout.max_tokens, or "
            "algorithm.filter_truncated=false"
        )
    return count
