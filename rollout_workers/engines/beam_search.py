"""Search a batch of prompts with beams: the answer is the finished beam with the best score.

A beam's score is its log-probability, divided by its length to the power of `length_penalty`. The search
equals that of `transformers` with `early_stopping=False`. Each step keeps the `num_beams` likeliest
unfinished beams of a prompt. A prompt is done when it has `num_beams` finished beams and the likeliest
unfinished beam scores no better than the worst of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.rollout import FinishReason
from rollout_workers.engines.base import Generation, Request
from rollout_workers.engines.decoding import Decoding
from rollout_workers.engines.sampling import forbid_, penalize_


@dataclass(frozen=True, slots=True)
class Beam:
    """A token, and the beam that it continues.

    Example: token 15, first of its answer, by weights of version 4:
    `Beam(parent=NOTHING, token=15, logprob=-0.7, version=4, total=-0.7, length=1)`
    """

    parent: "Beam | None"
    token: int
    logprob: float  # the token's log-probability, by the unpenalised model
    version: int
    total: float  # log-probability of all tokens so far, with the repetition penalty
    length: int

    def path(self) -> "list[Beam]":
        """Return the beams of all tokens, from the first to this one."""
        beams: list[Beam] = []
        beam = self
        while beam.parent is not None:
            beams.append(beam)
            beam = beam.parent
        return beams[::-1]


NOTHING = Beam(parent=None, token=-1, logprob=0.0, version=-1, total=0.0, length=0)


class Search:
    """Beams of one prompt: the running ones, likeliest first, and the best finished ones."""

    def __init__(
        self, request: Request, max_tokens: int, end_tokens: Sequence[int], read: Sequence[int] = ()
    ) -> None:
        self.request, self.read = request, read
        self._max_tokens, self._end_tokens = max_tokens, end_tokens
        self.running: list[Beam] = [NOTHING]
        self.finished: list[Beam] = []

    @property
    def is_too_short(self) -> bool:
        return self.running[0].length < self.request.sampling.min_tokens

    @property
    def is_done(self) -> bool:
        if not self.running:
            return True
        is_full = len(self.finished) == self.request.sampling.num_beams
        return is_full and self.score(self.running[0]) <= self.score(self.finished[-1])

    def score(self, beam: Beam) -> float:
        """Return the beam's log-probability, divided by its length to the power of the penalty."""
        return float(beam.total / beam.length**self.request.sampling.length_penalty)

    def advance(self, candidates: Sequence[Beam]) -> list[int]:
        """Take a step's candidates, likeliest first; return the beams that continue."""
        num_beams = self.request.sampling.num_beams
        ends = [b.token in self._end_tokens or b.length >= self._max_tokens for b in candidates]
        # An end counts only among the likeliest; other candidates replace the beams that ended.
        ended = [beam for beam, end in zip(candidates[:num_beams], ends[:num_beams], strict=True) if end]
        self.finished = sorted([*self.finished, *ended], key=lambda beam: -self.score(beam))[:num_beams]
        going_on = [index for index, end in enumerate(ends) if not end][:num_beams]
        self.running = [candidates[index] for index in going_on]
        return going_on


class BeamBatch:
    """Requests with the same number of beams, searched side by side."""

    def __init__(
        self,
        requests: Sequence[Request],
        max_tokens: Sequence[int],
        read: Sequence[Sequence[int]],
        decoding: Decoding,
        end_tokens: tuple[int, ...],
        to_text: Callable[[Sequence[int]], str],
    ) -> None:
        self._searches = [
            Search(request, limit, end_tokens, tokens)
            for request, limit, tokens in zip(requests, max_tokens, read, strict=True)
        ]
        # This number leaves `num_beams` candidates that continue, even if every beam ends in every way.
        self._num_candidates = (1 + max(1, len(end_tokens))) * requests[0].sampling.num_beams
        self._decoding, self._end_tokens, self._to_text = decoding, end_tokens, to_text
        self._newest_B: Tensor | None = None

    @property
    def num_unfinished(self) -> int:
        return len(self._searches)

    def step(self, version: int) -> list[Generation]:
        """Continue every beam by a token with weights of `version`; return the finished prompts."""
        logprobs_BV = self._decoding.read(self._newest_B).log_softmax(-1)
        going_on: list[tuple[int, Beam]] = []
        first_row = 0
        for search, likeliest in zip(self._searches, self._candidates(logprobs_BV), strict=True):
            candidates = [
                Beam(search.running[beam], token, logprob, version, total, search.running[beam].length + 1)
                for beam, token, logprob, total in likeliest
            ]
            rows = [first_row + beam for beam, *_ in likeliest]
            first_row += len(search.running)
            kept = search.advance(candidates)
            if not search.is_done:
                going_on += [(rows[index], candidates[index]) for index in kept]
        if going_on:
            self._decoding.select([row for row, _ in going_on])
            self._newest_B = torch.tensor([beam.token for _, beam in going_on], device=logprobs_BV.device)
        return self._retire()

    def _candidates(self, logprobs_BV: Tensor) -> list[list[tuple[int, int, float, float]]]:
        """Return each prompt's likeliest continuations: (beam, token, token's log-probability, total)."""
        beams = [(search, beam) for search in self._searches for beam in search.running]
        totals_B = torch.tensor([beam.total for _, beam in beams], device=logprobs_BV.device)
        penalties, scores_BV = (
            [search.request.sampling.repetition_penalty for search, _ in beams],
            logprobs_BV,
        )
        if any(penalty != 1 for penalty in penalties):
            seen = [(*search.read, *(step.token for step in beam.path())) for search, beam in beams]
            scores_BV = penalize_(logprobs_BV.clone(), seen, penalties)
        totals_BV = forbid_(
            scores_BV + totals_B[:, None], [search.is_too_short for search, _ in beams], self._end_tokens
        )
        num_prompts, vocab_size = len(self._searches), logprobs_BV.shape[-1]
        totals_PK = totals_BV.view(num_prompts, -1)  # K: the prompt's beams × the vocabulary
        best = totals_PK.topk(min(self._num_candidates, totals_PK.shape[-1]))
        logprobs_PC = logprobs_BV.view(num_prompts, -1).gather(-1, best.indices)
        return [
            [(*divmod(index, vocab_size), logprob, total) for index, logprob, total in zip(*row, strict=True)]
            for row in zip(best.indices.tolist(), logprobs_PC.tolist(), best.values.tolist(), strict=True)
        ]

    def _retire(self) -> list[Generation]:
        done = [search for search in self._searches if search.is_done]
        self._searches = [search for search in self._searches if not search.is_done]
        return [self._generation(search) for search in done]

    def _generation(self, search: Search) -> Generation:
        path = search.finished[0].path()
        tokens = tuple(beam.token for beam in path)
        return Generation(
            request_id=search.request.id,
            tokens=tokens,
            text=self._to_text(tokens),
            behavior_logprobs=tuple(beam.logprob for beam in path),
            versions=tuple(beam.version for beam in path),
            finish_reason=FinishReason.STOP if tokens[-1] in self._end_tokens else FinishReason.LENGTH,
        )
