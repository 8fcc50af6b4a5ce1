"""Scores of finished rollouts, computed while the others of their batch are still being written.

A rollout's scores depend on the weights and on its own tokens alone. So they are the same whenever they are
computed between two updates; sums in other micro-batches round differently in their last bits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learner.batching import Batch
from learner.passes.scoring import ScoredBatch


class EarlyScores:
    """Scores of one weight version, by lease and role."""

    def __init__(self) -> None:
        self._version = -1
        self._by_lease: dict[tuple[int, str], tuple[Tensor, ...]] = {}

    def keep(self, version: int, batch: Batch, scored: ScoredBatch) -> None:
        """Keep the scores of a part of the next batch; those of another version are dropped."""
        if version != self._version:
            self._version, self._by_lease = version, {}
        for row, (lease, length) in enumerate(zip(batch.leases, _lengths(batch), strict=True)):
            self._by_lease[lease] = tuple(each[row, :length].clone() for each in _scores(scored))

    def has(self, version: int) -> bool:
        """Return whether scores of this version are kept."""
        return version == self._version and bool(self._by_lease)

    def complete(self, version: int, batch: Batch, score: Callable[[Tensor], ScoredBatch]) -> ScoredBatch:
        """Return a batch's scores: those that are kept, which are forgotten, and those that are missing.

        Args:
            score: scores these rows of the batch, (R,), and leaves the others 0.
        """
        kept, self._by_lease = (self._by_lease if version == self._version else {}), {}
        missing = [row for row, lease in enumerate(batch.leases) if lease not in kept]
        scored = score(torch.tensor(missing, dtype=torch.long))
        for row, lease in enumerate(batch.leases):
            for scores_BT, own in zip(_scores(scored), kept.get(lease, ()), strict=False):
                scores_BT[row, : len(own)] = own
        return scored


def _lengths(batch: Batch) -> list[int]:
    lengths: list[int] = batch.counts_B.tolist()
    return lengths


def _scores(scored: ScoredBatch) -> list[Tensor]:
    """Return the scores that a pass computes, each (B, T)."""
    own = (scored.old_logprobs_BT, scored.ref_logprobs_BT, scored.values_BT)
    return [each for each in (*own, scored.entropies_BT, scored.full_kl_BT) if each is not None]
