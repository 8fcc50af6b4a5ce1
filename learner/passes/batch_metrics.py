"""Measure on a scored batch how far the policy is from the reference and the sampler from the learner."""

from dataclasses import dataclass

import numpy as np
import torch

from contracts.errors import LearnerError
from learner.algorithms.base import Credit
from learner.batching import Batch
from learner.fetching import fetched
from learner.functional.kl import k1, k3
from learner.micro_batch import upload
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
    if not scored.has_reference:
        return None
    compared = set(range(batch.num_rollouts) if scored.rollouts is None else scored.rollouts)
    own = np.array([row for row in batch.own_rows() if row in compared], np.int64)
    if not len(own):
        return None
    own_BT = torch.zeros_like(batch.mask_BT)
    own_BT[batch.places(own)] = True
    total = float((k1(scored.old_logprobs_BT, scored.ref_logprobs_BT) * own_BT).sum())
    num_tokens = int(batch.counts_B.numpy()[own].sum())
    return MeasuredKL(total / num_tokens, total / len(own), len(own))


def sampler_metrics(
    batch: Batch, scored: ScoredBatch, version: int, correction: Correction | None = None
) -> dict[str, float]:
    """Return how far the sampler's distribution is from the learner's, and how old its weights were.

    - mismatch/kl         KL(μ‖π_old), nats a token, by the estimate k3
    - mismatch/max_ratio  the largest factor between the two probabilities of a token, at least 1
    - mismatch/masked     share of tokens that `learner.mismatch` leaves out, where it may leave out some
    """
    own = batch.own_rows()
    if scored.entropies_BT is None or not len(own):
        return {}
    places = batch.places(own)
    behavior_N, old_N = batch.behavior_logprobs_BT[places], scored.old_logprobs_BT[places]
    ages_N = version - batch.versions_BT[places]
    scalars = {
        "entropy": scored.entropies_BT[places].mean(),
        "mismatch/kl": k3(behavior_N, old_N).mean(),
        "mismatch/max_ratio": (behavior_N - old_N).abs().max().double().exp(),
    }
    if correction is not None and correction.masks.masks:
        responses = {"responses_N": np.repeat(np.arange(len(own)), batch.counts_B.numpy()[own])}
        responses_N = upload(responses, batch.device)["responses_N"]
        kept_N, _kept_B = correction.kept(old_N - behavior_N, responses_N, len(own))
        scalars["mismatch/masked"] = 1.0 - kept_N.float().mean().double()
    scalars |= {"staleness/mean": ages_N.float().mean(), "staleness/max": ages_N.max()}
    return fetched(scalars)


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
