"""Batches of concurrent calls to one grader: calls that arrive while it scores form the next batch.

    call (3 samples) ──┐
    call (1 sample)  ──┼──▶ waiting ──▶ batch of at most batch_size ──▶ grader, one batch at a time
    call (9 samples) ──┘

An idle grader starts at once, without waiting for more calls.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from contracts.scores import Sample
from reward_servers.server import Answer


class Batches:
    """A queue that joins whole calls into batches of up to `batch_size` samples, and scores them in a thread.

    A larger call is cut into slices. Each object belongs to one event loop.

    Args:
        batch_size: None: every call is a batch of its own, neither joined nor cut, as whole groups need it.
    """

    def __init__(self, score: Callable[[Sequence[Sample]], list[Answer]], batch_size: int | None) -> None:
        self._score = score
        self._batch_size = batch_size
        self._waiting: deque[tuple[Sequence[Sample], asyncio.Future[list[Answer]]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._batch_began: float | None = None

    async def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return one answer for each sample, in order."""
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((samples, answers))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await answers

    @property
    def busy_s(self) -> float:
        """Seconds since the grader got its present batch; 0 when it is idle."""
        return 0.0 if self._batch_began is None else time.monotonic() - self._batch_began

    async def _work(self) -> None:
        while calls := self._next_calls():
            try:
                answers = await self._graded([sample for samples, _ in calls for sample in samples])
            except Exception as error:  # the callers get any error; the loop goes on
                for _, future in calls:
                    if not future.done():
                        future.set_exception(error)
                continue
            for samples, future in calls:
                own, answers = answers[: len(samples)], answers[len(samples) :]
                if not future.done():
                    future.set_result(own)

    def _next_calls(self) -> list[tuple[Sequence[Sample], asyncio.Future[list[Answer]]]]:
        """Take waiting calls in order, at least one and as many as fit into a batch; drop cancelled ones."""
        calls: list[tuple[Sequence[Sample], asyncio.Future[list[Answer]]]] = []
        num_samples = 0
        while self._waiting:
            samples, future = self._waiting[0]
            if calls and (self._batch_size is None or num_samples + len(samples) > self._batch_size):
                break
            self._waiting.popleft()
            if not future.done():
                calls.append((samples, future))
                num_samples += len(samples)
        return calls

    async def _graded(self, samples: Sequence[Sample]) -> list[Answer]:
        answers: list[Answer] = []
        size = self._batch_size or len(samples) or 1
        for begin in range(0, len(samples), size):
            self._batch_began = time.monotonic()
            try:
                answers += await asyncio.to_thread(self._score, samples[begin : begin + size])
            finally:
                self._batch_began = None
        return answers
