"""Scores of a remote teacher, laid out for a batch.

- one log-probability a span: log p/π_old is each token's advantage (Lu 2025, "On-Policy Distillation")
- the K likeliest tokens at each place: a divergence of K + 1 kinds of tokens, with all others as one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from contracts.rollout import TeacherScores
from learner.batches.batching import Batch, MicroBatch
from learner.functional.distribution_kl import Measure, top_logprobs, with_rest
from learner.models.policy import Policy


@dataclass(frozen=True, slots=True)
class BatchTeacherScores:
    """A teacher's scores of a batch's tokens.

    Example: one rollout of three tokens, the last two in one span, whose second token ends no span.

        logprobs_BT [[-0.2, 0, -1.1]]   spans_BT [[0, 1, 1]] (T for a token in no span)
    """

    logprobs_BT: Tensor
    spans_BT: Tensor
    top_tokens_BTK: Tensor | None
    top_logprobs_BTK: Tensor | None

    @classmethod
    def of(cls, batch: Batch) -> BatchTeacherScores | None:
        """Return the scores of a batch's rollouts; None if no teacher scored any."""
        if not batch.teachers:
            return None
        device, width = batch.device, batch.mask_BT.shape[1]
        rows = [scores or TeacherScores((), ()) for scores in batch.teachers]
        logprobs_BT = _laid_out([scores.logprobs for scores in rows], width, 0.0, np.float32)
        spans_BT = _laid_out([_spans(scores.ends, width) for scores in rows], width, width, np.int64)
        top = next((scores for scores in rows if scores.top_tokens), None)
        tops: tuple[Tensor | None, Tensor | None] = (None, None)
        if top is not None:
            shape = (len(rows), width, len(top.top_tokens[0]))
            tokens, logprobs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
            for row, scores in enumerate(rows):
                if scores.top_tokens:
                    tokens[row, : len(scores.top_tokens)] = scores.top_tokens
                    logprobs[row, : len(scores.top_logprobs)] = scores.top_logprobs
            tops = torch.from_numpy(tokens).to(device), torch.from_numpy(logprobs).to(device)
        return cls(logprobs_BT.to(device), spans_BT.to(device), *tops)

    @property
    def has_top(self) -> bool:
        """Return whether the teacher gave its likeliest tokens."""
        return self.top_tokens_BTK is not None

    def gains(self, old_logprobs_BT: Tensor) -> Tensor:
        """Return log p/π_old of each token's whole span, (B, T); 0 for tokens in no span.

        A span's tokens are one action, so each earns as much as the whole span.
        """
        width = old_logprobs_BT.shape[1]
        difference_BT = self.logprobs_BT - old_logprobs_BT
        sums_BT = difference_BT.new_zeros(len(difference_BT), width + 1)
        sums_BT.scatter_add_(1, self.spans_BT, difference_BT)
        sums_BT[:, width] = 0.0
        return sums_BT.gather(1, self.spans_BT)

    def divergence(self, policy: Policy, micro: MicroBatch, hidden_NH: Tensor, measure: Measure) -> Tensor:
        """Return a measure of each token's two distributions over the teacher's tokens and the rest, (N,)."""
        assert self.top_tokens_BTK is not None and self.top_logprobs_BTK is not None, "see `has_top`"
        teacher_NK = micro.pick(self.top_logprobs_BTK)
        student_NK = top_logprobs(
            *(hidden_NH, policy.logits, micro.pick(self.top_tokens_BTK)),
            vocab_size=policy.vocab_size,
            logits_budget=policy.logits_budget,
        )
        known_N = micro.pick(self.spans_BT) < self.spans_BT.shape[1]
        return measure(with_rest(student_NK), with_rest(teacher_NK)) * known_N


def _spans(ends: Sequence[bool], none: int) -> list[int]:
    """Return each token's span; `none` for tokens after the last end.

    >>> _spans((True, False, True, False), none=4)
    [0, 1, 1, 4]
    """
    before = [0, *accumulate(map(int, ends))]
    return [span if span < before[-1] else none for span in before[:-1]]


def _laid_out(rows: Sequence[Sequence[float]], width: int, fill: float, kind: type) -> Tensor:
    values: np.ndarray = np.full((len(rows), width), fill, kind)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    return torch.from_numpy(values)
