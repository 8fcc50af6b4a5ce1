"""One teacher-forced pass a model: old log-probabilities, values, entropies, reference log-probabilities.

One forward of a sequence gives all its tokens; never one forward a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.batching import Batch, micro_batches
from learner.policy import ActorCritic, CausalPolicy


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Aligned with `Batch.mask_BT`; zero outside of it."""

    logprobs_BT: Tensor  # the learner's, before the update: `old_logprobs`
    ref_logprobs_BT: Tensor
    values_BT: Tensor
    entropies_BT: Tensor | None

    @classmethod
    def unscored(cls, batch: Batch) -> ScoredBatch:
        """For algorithms that learn from data and need no score."""
        zeros_BT = torch.zeros_like(batch.rewards_BT)
        return cls(zeros_BT, zeros_BT, zeros_BT, None)


@torch.no_grad()
def score(
    batch: Batch,
    policy: ActorCritic,
    reference: CausalPolicy,
    token_budget: int,
    advance: Callable[[int], None],
) -> ScoredBatch:
    """Score every rollout of the batch; `advance(rows done)` is called after each micro-batch."""
    logprobs_BT, ref_logprobs_BT, values_BT, entropies_BT = (
        torch.zeros_like(batch.rewards_BT) for _ in range(4)
    )
    done = 0
    for micro in micro_batches(batch, torch.arange(batch.num_rollouts), token_budget):
        mask_BT = batch.mask_BT[micro.rows_B]
        out = policy(micro, with_entropy=True)
        for target_BT, values_N in (
            (logprobs_BT, out.logprobs_N),
            (entropies_BT, out.entropies_N),
            (values_BT, out.values_N),
            (ref_logprobs_BT, reference(micro)),
        ):
            empty_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
            target_BT[micro.rows_B] = empty_BT.masked_scatter(mask_BT, values_N.float())
        done += len(micro.rows_B)
        advance(done)
    return ScoredBatch(logprobs_BT, ref_logprobs_BT, values_BT, entropies_BT)
