"""Measure on a scored batch how far the policy is from the reference and the sampler from the learner."""

from dataclasses import dataclass

import torch

from learner.batching import Batch
from learner.functional.kl import k1, k3
from learner.scoring import ScoredBatch


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


def sampler_metrics(batch: Batch, scored: ScoredBatch, version: int) -> dict[str, float]:
    """Return how far the sampler's distribution is from the learner's, and how old its weights were."""
    mask_BT = batch.own_BT
    if scored.entropies_BT is None or not bool(mask_BT.any()):
        return {}
    behavior_N, old_N = batch.behavior_logprobs_BT[mask_BT], scored.old_logprobs_BT[mask_BT]
    return {
        "entropy": float(scored.entropies_BT[mask_BT].mean()),
        "mismatch_kl": float(k3(behavior_N, old_N).mean()),
        "mismatch/max": float((behavior_N - old_N).abs().max()),
        "staleness/mean": float((version - batch.versions_BT[mask_BT]).float().mean()),
        "staleness/max": float((version - batch.versions_BT[mask_BT]).max()),
    }
