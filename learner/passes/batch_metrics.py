"""Measure on a scored batch how far policy and reference differ, and sampler and learner."""

from dataclasses import dataclass

import numpy as np
import torch

from contracts.errors import LearnerError
from learner.algorithms.base import Algorithm, Credit
from learner.batches.batching import Batch
from learner.batches.fetching import fetched
from learner.batches.micro_batch import upload
from learner.functional.kl import k1, k3
from learner.off_policy import Correction
from learner.optimization.kl_control import next_coefficient
from learner.passes.scoring import ScoredBatch


@dataclass(frozen=True, slots=True)
class MeasuredKL:
    """KL to the reference policy, by the estimate k1 on tokens that the policy drew.

    Example: two responses with 3 nats in 6 tokens: `MeasuredKL(per_token=0.5, per_sequence=1.5, num_own=2)`
    """

    per_token: float
    per_sequence: float
    num_own: int  # responses that the policy generated


def measured_kl(batch: Batch, scored: ScoredBatch) -> MeasuredKL | None:
    """Return the KL to the reference policy.

    Returns: None if the reference did not score the batch, or the policy generated none of its responses.
    """
    if not scored.has_reference:
        return None
    compared = set(range(batch.num_rollouts) if scored.rollouts is None else scored.rollouts)
    drawn = np.array([row for row in batch.own_rows() if row in compared], np.int64)
    if not len(drawn):
        return None
    drawn_BT = torch.zeros_like(batch.mask_BT)
    drawn_BT[batch.places(drawn)] = True
    total = float((k1(scored.old_logprobs_BT, scored.ref_logprobs_BT) * drawn_BT).sum())
    num_tokens = int(batch.counts_B.numpy()[drawn].sum())
    return MeasuredKL(total / num_tokens, total / len(drawn), len(drawn))


def adapted_kl(
    algorithm: Algorithm, coefficient: float, batch: Batch, scored: ScoredBatch
) -> tuple[float, dict[str, float]]:
    """Return the KL's coefficient after this batch, and measures taken with the old coefficient."""
    if not algorithm.traits.online:
        return coefficient, {}
    metrics, kl = {"kl/coefficient": coefficient}, measured_kl(batch, scored)
    if kl is None:
        return coefficient, metrics
    following = next_coefficient(algorithm.kl, coefficient, kl.per_token, kl.per_sequence, kl.num_own)
    return following, {"kl/mean": kl.per_token, "kl/sequence": kl.per_sequence, **metrics}


def sampler_metrics(
    batch: Batch, scored: ScoredBatch, version: int, correction: Correction | None = None
) -> dict[str, float]:
    """Measure how far the sampler's distribution is from the learner's, and how old its weights were.

    - mismatch/kl         KL(μ‖π_old), nats a token, by the estimate k3
    - mismatch/max_ratio  the largest factor between the two probabilities of a token, at least 1
    - mismatch/masked     share of tokens that `learner.mismatch` masks, if its settings mask any
    """
    drawn = batch.own_rows()
    if scored.entropies_BT is None or not len(drawn):
        return {}
    places = batch.places(drawn)
    behavior_N, old_N = batch.behavior_logprobs_BT[places], scored.old_logprobs_BT[places]
    ages_N = version - batch.versions_BT[places]
    scalars = {
        "entropy": scored.entropies_BT[places].mean(),
        "mismatch/kl": k3(behavior_N, old_N).mean(),
        "mismatch/max_ratio": (behavior_N - old_N).abs().max().double().exp(),
    }
    if correction is not None and correction.masks.masks:
        responses = {"responses_N": np.repeat(np.arange(len(drawn)), batch.counts_B.numpy()[drawn])}
        responses_N = upload(responses, batch.device)["responses_N"]
        kept_N, _kept_B = correction.kept(old_N - behavior_N, responses_N, len(drawn))
        scalars["mismatch/masked"] = 1.0 - kept_N.float().mean().double()
    scalars |= {"staleness/mean": ages_N.float().mean(), "staleness/max": ages_N.max()}
    return fetched(scalars)


def num_trained(batch: Batch, credit: Credit) -> int:
    """Return how many rollouts the update trains on.

    Raises:
        LearnerError: credit leaves none.
    """
    count = batch.num_rollouts if credit.trains_B is None else int(credit.trains_B.sum())
    if not count:
        raise LearnerError(
            f"all {batch.num_rollouts} responses were cut off at the limit of tokens, and "
            "algorithm.filter_truncated=true leaves those out; expected a higher rollout.max_tokens, or "
            "algorithm.filter_truncated=false"
        )
    return count
