"""Which rank takes which sequences of a batch, and how many passes all of them make."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from learner.batching import Batch, MicroBatch, units_of, within_budget
from learner.ranks import Ranks


def dealt(
    batch: Batch,
    rows_B: Tensor,
    token_budget: int,
    ranks: Ranks,
    *,
    whole_rollouts: bool = False,
    whole_groups: bool = False,
) -> Iterator[MicroBatch]:
    """`micro_batches` of this rank's share of `rows_B`; their parameters are at hand in the loop's body.

    The sequences are dealt out like cards, longest first, so that shares are of like size. Ranks compute in
    step, for each pass takes rows of parameters from all of them: whoever has fewer passes than the others
    makes as many, the last ones with weight 0.
    """
    units = units_of(batch, rows_B, whole_rollouts=whole_rollouts, whole_groups=whole_groups)
    shares = [units[rank :: ranks.size] for rank in range(ranks.size)]
    hands = [list(within_budget(batch, share, token_budget)) for share in shares]
    own = hands[ranks.rank]
    for turn in range(max(map(len, hands))):
        ranks.gather()
        if turn < len(own):
            yield batch.part(own[turn])
        else:
            yield replace(batch.part(units[-1]), weight=0.0)
