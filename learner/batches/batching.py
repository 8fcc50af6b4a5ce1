"""Lay rollouts into tensors.

Advantages are computed on rollouts. Each has one row with the tokens that the model wrote in all its turns.
Models read sequences. A rollout has one sequence, or several if some of its turns begin a fresh context.

Sequences are padded on the right only. Behind a causal mask no real token sees the padding, so the fast
attention kernels apply without an attention mask.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from contracts.errors import LearnerError
from contracts.rollout import FinishReason, Rollout, TeacherScores, Turn
from learner.algorithms.inputs import RewardTerms
from learner.batches.micro_batch import MicroBatch, plan, upload
from learner.passes.reward_terms import reward_terms

__all__ = ["Batch", "MicroBatch", "collate"]


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Batch:
    """All rollouts of one update: _S sequences of _L tokens, _B rollouts of _T generated tokens.

    Example: one rollout of two turns. The model reads (12, 14), answers (15, 2) and earns 0.5. Then it reads
    (12, 9) in a fresh context, answers (2,) and earns 1.

        tokens_SL [[12, 14, 15, 2], [12, 9, 2, 0]]   loss_mask_SL [[0, 0, 1, 1], [0, 0, 1, 0]]
        lengths_S [4, 3]   rows_S [0, 0]   columns_S [0, 2] (of its first token in _T)
        mask_BT [[1, 1, 1]]   rewards_BT [[0, .5, 1]]   behavior_logprobs_BT [[-.7, -.1, -.4]]
        versions_BT [[4, 4, 4]]   positions_BT [[0, 1, 0]] (in its own turn)   counts_B [3]   groups_B [4]
        baseline_B [0] (0 where the rollout has none)   from_data_B None (all are the policy's)
        truncated_B None (all came to their end)   leases ((9, ""),)   groups (4,)   from_data (False,)
        oldest 4

    Planning reads arrays on the host: every name that ends in _S or _SL, `counts_B`, `groups` and
    `from_data`.
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
    groups: tuple[int, ...] = ()  # groups, as in `groups_B`
    from_data: tuple[bool, ...] = ()  # as in `from_data_B`, but of all rollouts
    oldest: int | None = None  # lowest weight version of the policy's tokens; None: it drew none
    from_data_B: Tensor | None = None  # rollouts that come from a data set; None: no rollout does
    truncated_B: Tensor | None = None  # rollouts that ended at the limit of tokens; None: no rollout did
    has_token_rewards: bool = False  # whether a reward scored single tokens of any rollout
    reward_terms: RewardTerms | None = None  # None: a rollout has only its whole reward
    shares_prompts: bool = False  # whether models read a prompt once for all sequences of a micro-batch
    # Prompts for the policy as its own teacher, one for each rollout (() for none); (): no rollout has one
    teacher_contexts: tuple[tuple[int, ...], ...] = ()
    # Scores by a remote teacher, one for each rollout; (): the run has no remote teacher
    teachers: tuple[TeacherScores | None, ...] = ()
    _plans: dict[tuple[int, ...], MicroBatch] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _made: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def device(self) -> torch.device:
        """Return the device on which the models compute."""
        return self.mask_BT.device

    @property
    def num_rollouts(self) -> int:
        return self.mask_BT.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.tokens_SL.shape[0]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that the model generated and trains on."""
        return int(self.counts_B.numpy().sum())

    @property
    def longest_S(self) -> list[int]:
        """Return each sequence's length as the student or its own teacher reads it, for budgets."""
        lengths = self.lengths_S.tolist()
        if not self.teacher_contexts:
            return lengths
        starts = self.loss_mask_SL.numpy().argmax(-1).tolist()
        contexts = [len(self.teacher_contexts[row]) for row in self.rows_S.tolist()]
        read = zip(lengths, starts, contexts, strict=True)
        return [length + max(0, context - start) for length, start, context in read]

    def own_rows(self) -> np.ndarray:
        """Return the rollouts that the policy drew itself, on the host."""
        return np.flatnonzero(~np.array(self.from_data))

    def places(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return row and column of each token of these rollouts, (N,) each, as in `values_BT[mask_BT]`.

        Indexing by a mask would make the CPU wait until a GPU has counted the values.
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

    def made(self, make: Callable[["Batch"], Made]) -> Made:
        """Return `make` of this batch; call it once, however many passes ask for the result."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(Made, self._made[make])

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
            tokens_SL, mask_SL = (of.numpy()[chosen, :width] for of in (self.tokens_SL, self.loss_mask_SL))
            starts_S = self.columns_S.numpy()[chosen]
            known = plan(tokens_SL, mask_SL, rows_S[chosen], starts_S, self.counts_B.numpy(), self.device)
            self._plans[key] = known = replace(known, sequences=key)
        return known.again()


def collate(
    rollouts: Sequence[Rollout], device: torch.device | str = "cpu", *, shares_prompts: bool = False
) -> Batch:
    """Lay rollouts into one padded batch.

    Raises:
        LearnerError: a rollout has no token to train on, or a sequence begins with a generated token.
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

    sequences = [read for row, rollout in enumerate(rollouts) for read in _sequences(row, rollout)]
    is_taught = any(rollout.teacher_context for rollout in rollouts)
    is_scored = any(rollout.teacher is not None for rollout in rollouts)
    return Batch(
        tokens_SL=_laid_out([read.tokens for read in sequences], torch.long),
        loss_mask_SL=_laid_out([read.mask for read in sequences], torch.bool),
        lengths_S=torch.tensor([_length(read.mask) for read in sequences]),
        rows_S=torch.tensor([read.row for read in sequences]),
        columns_S=torch.tensor([read.column for read in sequences]),
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
        reward_terms=reward_terms(rollouts, device),
        shares_prompts=shares_prompts,
        teacher_contexts=tuple(rollout.teacher_context for rollout in rollouts) if is_taught else (),
        teachers=tuple(rollout.teacher for rollout in rollouts) if is_scored else (),
    )


def _oldest(rollouts: Sequence[Rollout]) -> int | None:
    drawn = [turn for rollout in rollouts if not rollout.from_data for turn in rollout.turns]
    return min((int(turn.array("weight_versions").min()) for turn in drawn if turn.num_tokens), default=None)


def _any(is_so: list[bool], device: torch.device | str) -> Tensor | None:
    return torch.tensor(is_so, device=device) if any(is_so) else None


Row = list[np.ndarray]  # pieces in their order


@dataclass(frozen=True, slots=True)
class _Sequence:
    row: int
    column: int
    tokens: Row
    mask: Row


def _sequences(row: int, rollout: Rollout) -> Iterator[_Sequence]:
    """Yield the sequences that a model reads; leave out sequences without a generated token."""
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
    """Put each turn's reward at its tokens, or at its last token; if it has none, at the token before."""
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
