"""Texts that the policy as its own teacher reads: the same answers after longer prompts.

    the student   prompt                              answer
    the teacher   prompt, comment, another's answer   answer     a distribution for each of its tokens

Hübotter et al. 2026 (SDPO, arXiv 2601.20802); Shenfeld et al. 2026 (SDFT, arXiv 2601.19897).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from learner.batches.batching import Batch, MicroBatch
from learner.batches.micro_batch import upload
from learner.functional.distribution_kl import Measure
from learner.models.dropout import evaluating
from learner.models.policy import Policy


@dataclass(frozen=True, slots=True)
class TaughtTexts:
    """Sequences that a teacher reads, and the student's sequence for each.

    Example: for the student's second sequence (12, 14 | 15, 2), the teacher reads (12, 14, 9 | 15, 2).

        batch.tokens_SL [[12, 14, 9, 15, 2]]   places {1: 0}
    """

    batch: Batch
    places: dict[int, int]  # the student's sequence -> the teacher's

    @classmethod
    def of(cls, batch: Batch) -> TaughtTexts:
        """Return the teacher's texts of the rollouts in a batch that have a teacher's context."""
        taught = [
            (sequence, batch.teacher_contexts[row])
            for sequence, row in enumerate(batch.rows_S.tolist())
            if batch.teacher_contexts and batch.teacher_contexts[row]
        ]
        pieces = [_replaced(batch, sequence, context) for sequence, context in taught]
        lengths = [len(tokens) for tokens, _ in pieces]
        tokens_SL = np.zeros((len(pieces), max(lengths, default=0)), np.int64)
        mask_SL = np.zeros(tokens_SL.shape, np.bool_)
        for place, (tokens, mask) in enumerate(pieces):
            tokens_SL[place, : len(tokens)], mask_SL[place, : len(mask)] = tokens, mask
        chosen = torch.tensor([sequence for sequence, _ in taught], dtype=torch.long)
        read = replace(
            batch,
            tokens_SL=torch.from_numpy(tokens_SL),
            loss_mask_SL=torch.from_numpy(mask_SL),
            lengths_S=torch.tensor(lengths, dtype=torch.long),
            rows_S=batch.rows_S[chosen],
            columns_S=batch.columns_S[chosen],
            teacher_contexts=(),
        )
        return cls(read, {sequence: place for place, (sequence, _) in enumerate(taught)})

    def divergence(
        self,
        student: Policy,
        teacher: Policy,
        micro: MicroBatch,
        hidden_NH: Tensor,
        measure: Measure,
        *,
        in_step: bool = False,
    ) -> Tensor:
        """Return a measure of each token's two distributions, (N,), with a gradient to the student.

        It is 0 for tokens of rollouts without a teacher's context.

        Args:
            hidden_NH: the student's states before the tokens.
            in_step: run the teacher even if it has nothing to read, because other ranks do.
        """
        nothing_N = hidden_NH.sum(-1).float() * 0.0  # keeps the graph, so that any batch has a backward pass
        seen = [self.places[sequence] for sequence in micro.sequences if sequence in self.places]
        if not seen and not in_step:
            return nothing_N
        with torch.no_grad(), evaluating(teacher):
            teacher_hidden_NH = teacher.states(self.batch.part(seen) if seen else micro)
        if not seen:
            return nothing_N
        index_N = self._taught_tokens(micro)
        found_N = student.divergence_to(
            teacher, hidden_NH.index_select(0, index_N), teacher_hidden_NH, measure
        )
        return nothing_N.index_copy(0, index_N, found_N)

    def _taught_tokens(self, micro: MicroBatch) -> Tensor:
        """Return the places, among a micro-batch's tokens, of those that a teacher also reads."""
        counts_S = micro.on_host.mask_SL.sum(-1)
        taught_S = [sequence in self.places for sequence in micro.sequences]
        places = {"index_N": np.flatnonzero(np.repeat(taught_S, counts_S))}
        return upload(places, micro.on_host.device)["index_N"]


def _replaced(batch: Batch, sequence: int, context: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return a sequence's tokens and mask with another prompt in front."""
    length = int(batch.lengths_S[sequence])
    mask = batch.loss_mask_SL[sequence, :length].numpy()
    start = int(mask.argmax())
    tokens = batch.tokens_SL[sequence, start:length].numpy()
    return np.concatenate([np.asarray(context, np.int64), tokens]), np.concatenate(
        [np.zeros(len(context), np.bool_), mask[start:]]
    )
