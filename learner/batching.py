"""Lay rollouts into tensors, and split them into micro-batches by a budget of tokens.

Advantages are computed on rollouts: each has one row with the model's tokens of all its turns. Models read
sequences: a rollout has one, or several where some of its turns begin a fresh context.

Sequences are padded on the right only. Behind a causal mask no real token sees the padding, so the fast
attention kernels apply without an attention mask.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from contracts.errors import LearnerError
from contracts.rollout import FinishReason, Rollout, Turn
from learner.micro_batch import MicroBatch, plan, upload

__all__ = [
    "Batch",
    "MicroBatch",
    "collate",
    "micro_batches",
    "split_by_tokens",
    "split_rows",
    "units_of",
    "within_budget",
]


@dataclass(frozen=True, slots=True)
class Batch:
    """All rollouts of one update: _S sequences of _L tokens; _B rollouts of _T model's tokens, left-aligned.

    Example: one rollout of two turns. The model reads (12, 14), answers (15, 2) and earns 0.5. Then it reads
    (12, 9) in a fresh context, answers (2,) and earns 1.

        tokens_SL [[12, 14, 15, 2], [12, 9, 2, 0]]   loss_mask_SL [[0, 0, 1, 1], [0, 0, 1, 0]]
        lengths_S [4, 3]   rows_S [0, 0]   columns_S [0, 2] (of its first token in _T)
        mask_BT [[1, 1, 1]]   rewards_BT [[0, .5, 1]]   behavior_logprobs_BT [[-.7, -.1, -.4]]
        versions_BT [[4, 4, 4]]   positions_BT [[0, 1, 0]] (in its own turn)   counts_B [3]   groups_B [4]
        baseline_B [0] (0 where the rollout has none)   from_data_B None (all are the policy's)
        truncated_B None (all came to their end)   leases ((9, ""),)   groups (4,)   from_data (False,)
        oldest 4

    Planning reads arrays on the host: all that ends in _S or _SL, `counts_B`, `groups` and `from_data`.
    """

    tokens_SL: Tensor
    loss_mask_SL: Tensor
    lengths_S: Tensor
    rows_S: Tensor
    columns_S: Tensor
    mask_BT: Tensor
    rewards_BT: Tensor
    behavior_logprobs_BT: Tensor
    versions_BT: Tensor
    positions_BT: Tensor
    counts_B: Tensor
    groups_B: Tensor
    baseline_B: Tensor
    leases: tuple[tuple[int, str], ...] = ()  # the rollouts' numbers, and the policy's role in each
    groups: tuple[int, ...] = ()  # as `groups_B`
    from_data: tuple[bool, ...] = ()  # as `from_data_B`, of all rollouts
    oldest: int | None = None  # weight version of the tokens that the policy drew itself; None: none
    from_data_B: Tensor | None = None  # which rollouts are a data set's; None: none
    truncated_B: Tensor | None = None  # which rollouts ended at the limit of tokens; None: none
    has_token_rewards: bool = False  # whether a reward said what single tokens earn, in any rollout
    shares_prompts: bool = False  # whether its models read a prompt once for all sequences of a micro-batch
    _plans: dict[tuple[int, ...], MicroBatch] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def device(self) -> torch.device:
        """Return where the models compute."""
        return self.mask_BT.device

    @property
    def own_BT(self) -> Tensor:
        """Return the mask of the tokens that the policy drew itself."""
        return self.mask_BT if self.from_data_B is None else self.mask_BT & ~self.from_data_B[:, None]

    @property
    def num_rollouts(self) -> int:
        return self.mask_BT.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.tokens_SL.shape[0]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that the model generated, on which it trains."""
        return int(self.counts_B.numpy().sum())

    def own_rows(self) -> np.ndarray:
        """Return the rollouts that the policy drew itself, on the host."""
        return np.flatnonzero(~np.array(self.from_data))

    def places(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return row and column of each token of these rollouts, (N,) each, as `values_BT[mask_BT]` has them.

        Values picked by a mask would make the processor wait until a GPU has counted them.
        """
        columns_BT = np.arange(self.mask_BT.shape[1]) < self.counts_B.numpy()[rows, None]
        places, columns_N = columns_BT.nonzero()
        uploaded = upload({"rows_N": rows[places], "columns_N": columns_N}, self.device)
        return uploaded["rows_N"], uploaded["columns_N"]

    def whole_groups(self) -> Tensor:
        """Return the rows of each group, (groups, K), groups in the order of their first row.

        Raises:
            LearnerError: groups differ in size.
        """
        rows: dict[int, list[int]] = {}
        for row, group in enumerate(self.groups):
            rows.setdefault(group, []).append(row)
        sizes = Counter(map(len, rows.values()))
        if len(sizes) > 1:
            counts = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
            raise LearnerError(
                f"got prompts with different numbers of responses: {counts}; expected the same number each"
            )
        return torch.tensor(list(rows.values()))

    def part(self, sequences: Sequence[int]) -> MicroBatch:
        """Return these sequences as a micro-batch, with the sequences of one rollout side by side.

        A micro-batch is planned once; later calls return it with the same tensors on the device.
        """
        rows_S, first = self.rows_S.numpy(), dict[int, int]()
        for sequence in sequences:
            first.setdefault(int(rows_S[sequence]), len(first))
        chosen = sorted(sequences, key=lambda sequence: first[int(rows_S[sequence])])
        if (known := self._plans.get(key := tuple(chosen))) is None:
            width = int(self.lengths_S.numpy()[chosen].max())
            tokens_SL, mask_SL = (
                each.numpy()[chosen, :width] for each in (self.tokens_SL, self.loss_mask_SL)
            )
            starts_S = self.columns_S.numpy()[chosen]
            known = plan(tokens_SL, mask_SL, rows_S[chosen], starts_S, self.counts_B.numpy(), self.device)
            self._plans[key] = known
        return known.again()


def collate(
    rollouts: Sequence[Rollout], device: torch.device | str = "cpu", *, shares_prompts: bool = False
) -> Batch:
    """Lay rollouts into one padded batch.

    Raises:
        LearnerError: a rollout has no token to train on, or a sequence of it begins with a model's token.
    """
    for rollout in rollouts:
        num_prompt = min((segment[0].num_observed for segment in rollout.segments), default=0)
        if num_prompt == 0 or rollout.num_generated == 0:
            raise LearnerError(
                f"rollout of lease {rollout.lease_id} (prompt {rollout.prompt.id}) has "
                f"{num_prompt} prompt tokens and {rollout.num_generated} generated; "
                "both must be at least 1"
            )

    def rows(of_turn: Callable[[Turn], np.ndarray]) -> list[Row]:
        return [[of_turn(turn) for turn in rollout.turns] for rollout in rollouts]

    sequences = [each for row, rollout in enumerate(rollouts) for each in _sequences(row, rollout)]
    return Batch(
        tokens_SL=_laid_out([each.tokens for each in sequences], torch.long),
        loss_mask_SL=_laid_out([each.mask for each in sequences], torch.bool),
        lengths_S=torch.tensor([_length(each.mask) for each in sequences]),
        rows_S=torch.tensor([each.row for each in sequences]),
        columns_S=torch.tensor([each.column for each in sequences]),
        mask_BT=_laid_out(rows(lambda turn: np.ones(turn.num_tokens, np.bool_)), torch.bool, device),
        rewards_BT=_laid_out([[_rewards(rollout)] for rollout in rollouts], torch.float32, device),
        behavior_logprobs_BT=_laid_out(
            rows(lambda turn: turn.array("behavior_logprobs")), torch.float32, device
        ),
        versions_BT=_laid_out(rows(lambda turn: turn.array("weight_versions")), torch.long, device),
        positions_BT=_laid_out(rows(lambda turn: np.arange(turn.num_tokens)), torch.long, device),
        counts_B=torch.tensor([rollout.num_generated for rollout in rollouts]),
        groups_B=torch.tensor([r.group for r in rollouts], device=device),
        baseline_B=torch.tensor([r.baseline or 0.0 for r in rollouts], dtype=torch.float32, device=device),
        leases=tuple((rollout.lease_id, rollout.turns[0].role) for rollout in rollouts),
        groups=tuple(rollout.group for rollout in rollouts),
        from_data=tuple(rollout.from_data for rollout in rollouts),
        oldest=_oldest(rollouts),
        from_data_B=_any([rollout.from_data for rollout in rollouts], device),
        truncated_B=_any([rollout.finish_reason is FinishReason.LENGTH for rollout in rollouts], device),
        has_token_rewards=any(turn.token_rewards for rollout in rollouts for turn in rollout.turns),
        shares_prompts=shares_prompts,
    )


def _oldest(rollouts: Sequence[Rollout]) -> int | None:
    own = [turn for rollout in rollouts if not rollout.from_data for turn in rollout.turns]
    return min((int(turn.array("weight_versions").min()) for turn in own if turn.num_tokens), default=None)


def _any(is_so: list[bool], device: torch.device | str) -> Tensor | None:
    return torch.tensor(is_so, device=device) if any(is_so) else None


Row = list[np.ndarray]  # pieces that follow each other


@dataclass(frozen=True, slots=True)
class _Sequence:
    row: int
    column: int
    tokens: Row
    mask: Row


def _sequences(row: int, rollout: Rollout) -> Iterator[_Sequence]:
    """Yield the sequences that a model reads; leave out those in which the model generated nothing."""
    column = 0
    for segment in rollout.segments:
        num_generated = sum(turn.num_tokens for turn in segment)
        if num_generated:
            tokens = [turn.array(name) for turn in segment for name in ("observation", "tokens")]
            mask = [
                np.full(count, mine)
                for turn in segment
                for count, mine in ((turn.num_observed, False), (turn.num_tokens, True))
            ]
            yield _Sequence(row, column, tokens, mask)
            column += num_generated


def _rewards(rollout: Rollout) -> np.ndarray:
    """Put each turn's reward at its tokens, or at its last one; without tokens, at the token before."""
    rewards, end = np.zeros(rollout.num_generated), 0
    for turn in rollout.turns:
        end += turn.num_tokens
        if turn.token_rewards:
            rewards[end - turn.num_tokens : end] += turn.token_rewards
        elif end and turn.reward is not None:
            rewards[end - 1] += turn.reward
    return rewards


def _length(row: Row) -> int:
    return sum(map(len, row))


def _laid_out(rows: Sequence[Row], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return the rows as one tensor, padded on the right with zeros."""
    laid_out = torch.zeros((len(rows), max(map(_length, rows))), dtype=dtype)
    for place, row in zip(laid_out.numpy(), rows, strict=True):
        end = 0
        for piece in row:
            place[end : end + len(piece)] = piece
            end += len(piece)
    return laid_out.to(device)


def split_by_tokens(batch: Batch, rows_R: Tensor, num_tokens: int) -> list[Tensor]:
    """Split rollouts so that each part but the last has at least `num_tokens` of the model's tokens."""
    ends, filled = [], 0
    for end, count in enumerate(batch.counts_B.numpy()[rows_R.numpy()].tolist(), start=1):
        filled += count
        if filled >= num_tokens:
            ends.append(end)
            filled = 0
    parts = rows_R.tensor_split(ends)
    return [part for part in parts if len(part)]


def split_rows(batch: Batch, rows_R: Tensor, size: int | None, num_tokens: int | None) -> list[Tensor]:
    """Split rollouts into minibatches of `size`, or of at least `num_tokens` where that is set."""
    if num_tokens is not None:
        return split_by_tokens(batch, rows_R, num_tokens)
    return list(rows_R.split(size or batch.num_rollouts))


ENOUGH_TOKENS = 2048  # of a micro-batch that may end before the budget does
MUCH_SHORTER = 0.8  # of the longest sequence


def micro_batches(
    batch: Batch,
    rows_B: Tensor,
    token_budget: int,
    *,
    whole_rollouts: bool = False,
    whole_groups: bool = False,
) -> Iterator[MicroBatch]:
    """Split the sequences of `rows_B` so that no part holds more tokens than the budget, padding included.

    The longest come first, so that sequences of like length share a micro-batch and padding is rare. A
    sequence that exceeds the budget makes a micro-batch of its own.

    Args:
        whole_rollouts: keep a rollout's sequences in one part, for a loss on whole responses. A rollout that
            exceeds the budget makes a part of its own.
        whole_groups: keep all rollouts of a group in one part, in the order of `rows_B`.
    """
    units = units_of(batch, rows_B, whole_rollouts=whole_rollouts, whole_groups=whole_groups)
    for chosen in within_budget(batch, units, token_budget):
        yield batch.part(chosen)


def units_of(
    batch: Batch, rows_B: Tensor, *, whole_rollouts: bool = False, whole_groups: bool = False
) -> list[list[int]]:
    """Return the sequences of `rows_B`, longest first; sequences that stay together share a list."""
    lengths = batch.lengths_S.tolist()
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
    """Join neighbouring units of `units_of`, as many at a time as the budget allows.

    A part with enough tokens ends before a unit that is much shorter, which would be mostly padding.
    """
    lengths = batch.lengths_S.tolist()
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
