"""Divide a batch's sequences among the ranks, so that all ranks make equally many passes."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from learner.batching import Batch, MicroBatch, units_of
from learner.distributed.ranks import Ranks
from learner.models.shared_prompts import partition


def rank_micro_batches(
    batch: Batch,
    rows_B: Tensor,
    token_budget: int,
    ranks: Ranks,
    *,
    whole_rollouts: bool = False,
    whole_groups: bool = False,
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of this rank's share of `rows_B`, with the parameters gathered for each.

    Ranks take sequences in turn, longest first, so that shares have like size. Each pass needs parameters
    from all ranks, so all make equally many: a rank with fewer micro-batches repeats one with weight 0.
    """
    units = units_of(batch, rows_B, whole_rollouts=whole_rollouts, whole_groups=whole_groups)
    shares = [units[rank :: ranks.size] for rank in range(ranks.size)]
    parts = [partition(batch, share, token_budget) for share in shares]
    own = parts[ranks.rank]
    passes = max(map(len, parts))
    for index in range(passes):
        ranks.gather(is_last=index == passes - 1)
        if index < len(own):
            yield batch.part(own[index])
        else:
            yield replace(batch.part(units[-1]), weight=0.0)
