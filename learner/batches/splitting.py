"""Split a batch into minibatches, its sequences into micro-batches by a budget, and these among the ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from learner.batches.batching import Batch, MicroBatch
from learner.distributed.ranks import Ranks
from learner.models.shared_prompts import MOST_LEFT

ENOUGH_TOKENS = 2048  # from this many tokens on, a micro-batch may stay below the budget
MUCH_SHORTER = 0.8  # share of the longest sequence


def split_by_tokens(batch: Batch, rows_R: Tensor, num_tokens: int) -> list[Tensor]:
    """Split rollouts so that each part except the last has at least `num_tokens` generated tokens."""
    ends, filled = [], 0
    for end, count in enumerate(batch.counts_B.numpy()[rows_R.numpy()].tolist(), start=1):
        filled += count
        if filled >= num_tokens:
            ends.append(end)
            filled = 0
    parts = rows_R.tensor_split(ends)
    return [part for part in parts if len(part)]


def split_rows(batch: Batch, rows_R: Tensor, size: int | None, num_tokens: int | None) -> list[Tensor]:
    """Split rollouts into minibatches of `size`, or of at least `num_tokens` if it is set."""
    if num_tokens is not None:
        return split_by_tokens(batch, rows_R, num_tokens)
    return list(rows_R.split(size or batch.num_rollouts))


def micro_batches(
    batch: Batch,
    rows_B: Tensor,
    token_budget: int,
    *,
    whole_rollouts: bool = False,
    whole_groups: bool = False,
) -> Iterator[MicroBatch]:
    """Split the sequences of `rows_B` so that no part holds more tokens than the budget, padding included.

    The longest come first, so sequences of similar length share a micro-batch and have little padding. A
    sequence that exceeds the budget makes a micro-batch alone.

    Args:
        whole_rollouts: keep a rollout's sequences in one part, for a loss on whole responses. A rollout that
            exceeds the budget makes a part alone.
        whole_groups: keep all rollouts of a group in one part, in the order of `rows_B`.
    """
    units = units_of(batch, rows_B, whole_rollouts=whole_rollouts, whole_groups=whole_groups)
    for chosen in within_budget(batch, units, token_budget):
        yield batch.part(chosen)


def units_of(
    batch: Batch, rows_B: Tensor, *, whole_rollouts: bool = False, whole_groups: bool = False
) -> list[list[int]]:
    """Return the sequences of `rows_B`, longest first; sequences that must stay together share a list."""
    lengths = batch.longest_S
    of_row: dict[int, list[int]] = {}
    for sequence, row in enumerate(batch.rows_S.tolist()):
        of_row.setdefault(row, []).append(sequence)
    units = [of_row[row] for row in rows_B.tolist()]
    if whole_groups:
        of_group: dict[int, list[int]] = {}
        for row, unit in zip(rows_B.tolist(), units, strict=True):
            of_group.setdefault(batch.groups[row], []).extend(unit)
        units = list(of_group.values())
    elif not whole_rollouts:
        units = [[sequence] for unit in units for sequence in unit]
    return sorted(units, key=lambda unit: -max(lengths[sequence] for sequence in unit))


def within_budget(batch: Batch, units: Sequence[Sequence[int]], token_budget: int) -> Iterator[list[int]]:
    """Join as many neighbouring units of `units_of` as the budget allows.

    A part with enough tokens ends before a much shorter unit, which would be mostly padding.
    """
    lengths = batch.longest_S
    chosen: list[int] = []
    longest = 0
    for unit in units:
        own_longest = max(lengths[sequence] for sequence in unit)
        full = (len(chosen) + len(unit)) * longest > token_budget
        padded = len(chosen) * longest >= ENOUGH_TOKENS and own_longest < MUCH_SHORTER * longest
        if chosen and (full or padded):
            yield chosen
            chosen = []
        longest = longest if chosen else own_longest
        chosen += unit
    if chosen:
        yield chosen


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

    Ranks take sequences in turn, longest first, so their shares have similar size. Each pass needs parameters
    from all ranks. So all make equally many: a rank with fewer micro-batches repeats one with weight 0.
    """
    units = units_of(batch, rows_B, whole_rollouts=whole_rollouts, whole_groups=whole_groups)
    shares = [units[rank :: ranks.size] for rank in range(ranks.size)]
    parts = [partition(batch, share, token_budget) for share in shares]
    mine = parts[ranks.rank]
    passes = max(map(len, parts))
    for index in range(passes):
        ranks.gather(is_last=index == passes - 1)
        if index < len(mine):
            yield batch.part(mine[index])
        else:
            yield replace(batch.part(units[-1]), weight=0.0)


def partition(batch: Batch, units: Sequence[Sequence[int]], token_budget: int) -> list[list[int]]:
    """Join the units of `units_of` into the parts that need the fewest tokens.

    Parts of similar length have little padding; parts of whole groups have few prompts.
    """
    by_length = list(within_budget(batch, units, token_budget))
    if not batch.shares_prompts or len(by_length) == 1:
        return by_length
    lengths, starts = batch.longest_S, batch.loss_mask_SL.numpy().argmax(-1).tolist()
    groups = [batch.groups[row] for row in batch.rows_S.tolist()]
    mates: dict[int, list[list[int]]] = {}
    for unit in units:
        chunks = mates.setdefault(groups[unit[0]], [[]])
        longest = max(lengths[sequence] for sequence in (*chunks[-1], *unit))
        if (len(chunks[-1]) + len(unit)) * longest > token_budget:
            chunks.append([])
        chunks[-1].extend(unit)
    together = [chunk for chunks in mates.values() for chunk in chunks if chunk]
    together.sort(key=lambda chunk: -max(lengths[sequence] for sequence in chunk))

    def num_read(parts: Sequence[Sequence[int]]) -> int:
        read = [[(groups[row], starts[row], lengths[row]) for row in part] for part in parts]
        return sum(map(_num_read, read))

    return min(by_length, list(within_budget(batch, together, token_budget)), key=num_read)


def _num_read(sequences: Sequence[tuple[int, int, int]]) -> int:
    """Return the tokens that a part's passes read, padding included.

    Args:
        sequences: (group, prompt's length, length) of each sequence.

    >>> _num_read([(0, 100, 110), (0, 100, 115)]), _num_read([(0, 100, 110), (1, 90, 130)])
    (129, 260)
    """
    plain = len(sequences) * max(length for _, _, length in sequences)
    prompts = {(group, start) for group, start, _ in sequences}
    written = max(length - start for _, start, length in sequences)
    shared = len(prompts) * (max(start for _, start in prompts) - 1) + len(sequences) * written
    return shared if len(prompts) < len(sequences) and shared <= MOST_LEFT * plain else plain
