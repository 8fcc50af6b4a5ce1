"""Batches of concurrent calls to one grader: calls that arrive while it scores form the next batch.

    call (3 samples) ──┐
    call (1 sample)  ──┼──▶ waiting ──▶ batch of at most batch_size ──▶ grader, one batch at a time
    call (9 samples) ──┘

An idle grader starts at once, without waiting for more calls.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from contracts.scores import Answer, Sample


class TooLate(Exception):
    """A call whose batch takes longer than `timeout_s`."""


Call = tuple[Sequence[Sample], asyncio.Future[list[Answer]]]


class Batches:
    """A queue that joins whole calls into batches of up to `batch_size` samples, and scores them in a thread.

    A larger call is cut into slices. Each object belongs to one event loop.

    Args:
        batch_size: None: every call is a batch of its own, neither joined nor cut, as whole groups need it.
        timeout_s: the longest that a batch may take, from its own beginning.
    """

    def __init__(
        self,
        score: Callable[[Sequence[Sample]], list[Answer]],
        batch_size: int | None,
        timeout_s: float = math.inf,
    ) -> None:
        self._score = score
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._waiting: deque[Call] = deque()
        self._working: asyncio.Task[None] | None = None
        self._batch_began: float | None = None

    async def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return one answer for each sample, in order.

        Raises:
            TooLate: a batch took longer than `timeout_s`; the next one waits for its thread.
        """
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
                answers = await self._graded(calls)
            except Exception as error:  # the callers get any error; the loop goes on
                for _, future in calls:
                    if not future.done():
                        future.set_exception(error)
                continue
            for samples, future in calls:
                first, answers = answers[: len(samples)], answers[len(samples) :]
                if not future.done():
                    future.set_result(first)

    def _next_calls(self) -> list[Call]:
        """Take waiting calls in order, at least one and as many as fit into a batch; drop cancelled ones."""
        calls: list[Call] = []
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

    async def _graded(self, calls: Sequence[Call]) -> list[Answer]:
        samples = [sample for batch, _ in calls for sample in batch]
        answers: list[Answer] = []
        size = self._batch_size or len(samples) or 1
        for begin in range(0, len(samples), size):
            if all(future.done() for _, future in calls):  # too late for them
                break
            self._batch_began = time.monotonic()
            late = asyncio.get_running_loop().call_later(self._timeout_s, _give_up, calls)
            try:
                answers += await asyncio.to_thread(self._score, samples[begin : begin + size])
            finally:
                late.cancel()
                self._batch_began = None
        return answers


def _give_up(calls: Sequence[Call]) -> None:
    for _, future in calls:
        if not future.done():
            future.set_exception(TooLate())
