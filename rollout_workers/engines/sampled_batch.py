"""Draw the tokens of a batch of requests side by side, one token of each at every step.

A row's draws depend only on its logits and its random numbers, so a request gets the same answer in any
batch.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from contracts.errors import WorkerError
from contracts.rollout import FinishReason, MaskRule
from contracts.token_sets import mask_set
from rollout_workers.engines.base import Generation, Request, Undrawable
from rollout_workers.engines.decoding import Decoding
from rollout_workers.engines.sampling import check_finite, drawable_rows, forbid_, penalize_, sample


@dataclass(slots=True)
class Row:
    """Request in progress."""

    request: Request
    max_tokens: int  # the request's limit, or the room in the model's window
    read: Sequence[int]  # tokens that a repetition penalty counts besides generated ones
    random: random.Random
    tokens: list[int] = field(default_factory=list)
    behavior_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    num_letters: int = 0  # length of the text before the newest token; only for stop strings


@dataclass(frozen=True, slots=True)
class Mask:
    """NLPO's mask: the mask model's reading of the same prompts and tokens, and its rule."""

    decoding: Decoding
    rule: MaskRule


class SampledBatch:
    """Batch of rows that started together; each leaves when its answer ends."""

    def __init__(
        self,
        requests: Sequence[Request],
        max_tokens: Sequence[int],
        read: Sequence[Sequence[int]],
        decoding: Decoding,
        mask: Mask | None,
        end_tokens: tuple[int, ...],
        to_text: Callable[[Sequence[int]], str],
    ) -> None:
        self._rows = [
            Row(request, limit, tokens, random.Random(request.seed))
            for request, limit, tokens in zip(requests, max_tokens, read, strict=True)
        ]
        self._decoding, self._mask = decoding, mask
        self._end_tokens, self._to_text = end_tokens, to_text
        self._newest_B: Tensor | None = None

    @property
    def num_unfinished(self) -> int:
        return len(self._rows)

    def drop(self, ids: Collection[int]) -> None:
        """Remove requests from the batch between two steps, unless nothing is drawn yet."""
        if self._newest_B is not None:
            self._take_out([index for index, row in enumerate(self._rows) if row.request.id in ids])

    def step(self, version: int) -> list[Generation]:
        """Draw a token of each row with weights of `version`; return the rows that ended.

        Raises:
            Undrawable: the sampling of some rows failed, and they left; the other rows have one token more.
            WorkerError: the model's logits are not finite.
        """
        raw_BV = self._decoding.read(self._newest_B)
        raw_B = raw_BV.amax(-1)
        logits_BV = self._warped(raw_BV)
        samplings = [row.request.sampling for row in self._rows]
        numbers = [row.random.random() for row in self._rows]
        failed: set[int] = set()
        try:
            tokens_B, logprobs_B = sample(logits_BV, samplings, numbers)
        except WorkerError:
            check_finite(raw_B)
            fits_B = drawable_rows(logits_BV, samplings)
            failed = {
                row.request.id for row, fits in zip(self._rows, fits_B.tolist(), strict=True) if not fits
            }
            uniform_BV = logits_BV.masked_fill(~fits_B[:, None], 0)  # the draw of these rows is not read
            tokens_B, logprobs_B = sample(uniform_BV, samplings, numbers)
        for row, token, logprob in zip(self._rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            row.tokens.append(token)
            row.behavior_logprobs.append(logprob)
            row.versions.append(version)
        self._newest_B = tokens_B
        finished = self._retire(failed)
        if failed:
            raise Undrawable(failed, finished)
        return finished

    def _warped(self, logits_BV: Tensor) -> Tensor:
        """Return penalised logits, -inf for end tokens of rows that are too short, and for masked tokens."""
        too_short = [len(row.tokens) < row.request.sampling.min_tokens for row in self._rows]
        penalties = [row.request.sampling.repetition_penalty for row in self._rows]
        if any(penalty != 1 for penalty in penalties):
            penalize_(logits_BV, [(*row.read, *row.tokens) for row in self._rows], penalties)
        forbid_(logits_BV, too_short, self._end_tokens)
        if self._mask is None:
            return logits_BV
        # The end tokens must leave the mask model's distribution, too, or it could allow nothing else.
        mask_logits_BV = forbid_(self._mask.decoding.read(self._newest_B), too_short, self._end_tokens)
        return logits_BV.masked_fill(~mask_set(mask_logits_BV, self._mask.rule), float("-inf"))

    def _retire(self, failed: Collection[int]) -> list[Generation]:
        """Remove the rows that ended or failed from the batch; the last rows move into their places."""
        has_failed = [row.request.id in failed for row in self._rows]
        results = [
            None if fails else self._result(row) for row, fails in zip(self._rows, has_failed, strict=True)
        ]
        self._take_out(
            [index for index, fails in enumerate(has_failed) if fails or results[index] is not None]
        )
        return [result for result in results if result is not None]

    def _take_out(self, ended: Sequence[int]) -> None:
        if not ended:
            return
        left = without(ended, len(self._rows))
        self._rows = [self._rows[index] for index in left]
        if left and self._newest_B is not None:
            self._newest_B = self._newest_B[left]
            self._decoding.select(left)
            if self._mask is not None:
                self._mask.decoding.select(left)

    def _result(self, row: Row) -> Generation | None:
        stop = row.request.sampling.stop
        is_end = row.tokens[-1] in self._end_tokens and not row.request.sampling.ignore_eos
        text = self._to_text(row.tokens) if stop else ""
        cut = _stop_string(row, text) if stop else None
        if is_end or cut is not None:
            reason = FinishReason.STOP
        elif len(row.tokens) >= row.max_tokens:
            reason = FinishReason.LENGTH
        else:
            return None
        return Generation(
            request_id=row.request.id,
            tokens=tuple(row.tokens),
            text=self._to_text(row.tokens) if cut is None else text[:cut],
            behavior_logprobs=tuple(row.behavior_logprobs),
            versions=tuple(row.versions),
            finish_reason=reason,
        )


def without(ended: Sequence[int], num_rows: int) -> list[int]:
    """Return the remaining rows in their new order: the last ones fill the gaps, the others stay.

    >>> without([1, 2], 6)
    [0, 4, 5, 3]
    """
    left = list(range(num_rows))
    for row in reversed(ended):
        last = left.pop()
        if row < len(left):
            left[row] = last
    return left


def _stop_string(row: Row, text: str) -> int | None:
    """Return where a stop string begins that the newest token completed; None: none.

    As in vLLM, stop strings that were complete within the first `min_tokens` tokens don't count.
    """
    before, row.num_letters = row.num_letters, len(text)
    if len(row.tokens) <= row.request.sampling.min_tokens:
        return None
    stops = row.request.sampling.stop
    begins = [(text.find(stop, max(0, before + 1 - len(stop))), len(stop)) for stop in stops]
    matches = [(begin + length, begin) for begin, length in begins if begin >= 0]
    return min(matches)[1] if matches else None
