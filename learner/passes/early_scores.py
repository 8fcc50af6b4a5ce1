"""Scores of finished rollouts, computed while the rest of their batch is being written.

A rollout's scores depend only on the weights and on its tokens. So they are the same at any time between two
updates, except that sums in other micro-batches differ in their last bits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learner.batches.batching import Batch
from learner.passes.scoring import ScoredBatch


class EarlyScores:
    """Scores of one weight version, by lease and role."""

    def __init__(self) -> None:
        self._version = -1
        self._by_lease: dict[tuple[int, str], tuple[Tensor, ...]] = {}

    def keep(self, version: int, batch: Batch, scored: ScoredBatch) -> None:
        """Keep the scores of a part of the next batch; drop scores of another version."""
        if version != self._version:
            self._version, self._by_lease = version, {}
        for row, (lease, length) in enumerate(zip(batch.leases, _lengths(batch), strict=True)):
            self._by_lease[lease] = tuple(scores_BT[row, :length].clone() for scores_BT in _scores(scored))

    def has(self, version: int) -> bool:
        """Return whether scores of this version are kept."""
        return version == self._version and bool(self._by_lease)

    def complete(self, version: int, batch: Batch, score: Callable[[Tensor], ScoredBatch]) -> ScoredBatch:
        """Return a batch's scores: the kept ones, which are then forgotten, and the missing ones.

        Args:
            score: scores these rows of the batch, (R,), and leaves the others 0.
        """
        kept, self._by_lease = (self._by_lease if version == self._version else {}), {}
        missing = [row for row, lease in enumerate(batch.leases) if lease not in kept]
        scored = score(torch.tensor(missing, dtype=torch.long))
        for row, lease in enumerate(batch.leases):
            for scores_BT, scores_T in zip(_scores(scored), kept.get(lease, ()), strict=False):
                scores_BT[row, : len(scores_T)] = scores_T
        return scored


def _lengths(batch: Batch) -> list[int]:
    lengths: list[int] = batch.counts_B.tolist()
    return lengths


def _scores(scored: ScoredBatch) -> list[Tensor]:
    """Return the scores that a pass computes, each (B, T)."""
    always = (scored.old_logprobs_BT, scored.ref_logprobs_BT, scored.values_BT)
    return [part_BT for part_BT in (*always, scored.entropies_BT, scored.full_kl_BT) if part_BT is not None]
