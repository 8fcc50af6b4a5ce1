"""Sample texts for clients. Jobs that wait for the same weights go to the engine together."""

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from contracts.errors import InputError
from services.training.service.child import Child, ChildLost
from services.training.service.jobs import Job
from services.training.service.journal import KEPT_S, Answer, failure
from services.training.service.waiters import Waiters
from services.training.service.wire import sample_output

LOOK_S = 0.5
MOST_TEXTS = 256  # texts in a batch
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job, and the folder of its weights; None: the base's."""

    folder: str | None
    job: Job


class SamplerDesk(threading.Thread):
    """Thread that samples. Its jobs live in memory, because the SDK repeats calls that a new server lacks."""

    def __init__(self, sampler: Child, waiters: Waiters) -> None:
        super().__init__(name="sampler desk", daemon=True)
        self._sampler, self._waiters = sampler, waiters
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []
        self._answers: OrderedDict[str, tuple[float, Answer | None]] = OrderedDict()
        self._digests: dict[str, str] = {}  # digests of the calls
        self._news, self._ends = threading.Event(), threading.Event()

    def admit(self, folder: str | None, job: Job, digest: str) -> None:
        """Queue a job. A second job with the same id and digest is the same.

        Raises:
            InputError: a job with this id has another digest.
        """
        with self._lock:
            if job.id in self._answers:
                if self._digests[job.id] != digest:
                    raise InputError(f"{job.id} was sent before with other content; expected a new seq_id")
                return
            self._answers[job.id], self._digests[job.id] = (time.monotonic(), None), digest
            self._waiting.append(Waiting(folder, job))
            self._forget_old()
        self._news.set()

    def answer_of(self, call: str) -> Answer | None:
        """Return an answer, or None while the job waits.

        Raises:
            KeyError: there is no such job.
        """
        with self._lock:
            return self._answers[call][1]

    def cancel(self, call: str) -> None:
        with self._lock:
            left = [waiting for waiting in self._waiting if waiting.job.id != call]
            if len(left) < len(self._waiting):
                self._answers.pop(call, None)
                self._digests.pop(call, None)
            self._waiting = left

    def stop(self) -> None:
        self._ends.set()
        self._news.set()

    def run(self) -> None:
        while not self._ends.is_set():
            batch = self._next_batch()
            if batch:
                self._draw(batch)
            else:
                self._news.wait(LOOK_S)
                self._news.clear()

    def _next_batch(self) -> list[Waiting]:
        """Take the oldest job, and other jobs with the same weights, up to a number of texts."""
        with self._lock:
            batch: list[Waiting] = []
            texts = 0
            for waiting in self._waiting:
                is_alike = waiting.folder == self._waiting[0].folder
                if is_alike and (not batch or texts + waiting.job.num_samples <= MOST_TEXTS):
                    batch.append(waiting)
                    texts += waiting.job.num_samples
            self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
            return batch

    def _draw(self, batch: list[Waiting]) -> None:
        jobs = [waiting.job for waiting in batch]
        try:
            try:
                results = self._sampler.call("draw", batch[0].folder, jobs)
            except ChildLost as error:
                LOG.warning("%s; a new process samples its texts", error)
                results = self._sampler.call("draw", batch[0].folder, jobs)
        except InputError as error:
            results = {job.id: str(error) for job in jobs}
        except Exception as error:  # for example, the process can't start; serve other texts
            LOG.warning("%s; its texts fail", error)
            self._settle({job.id: failure(str(error), "server") for job in jobs})
            return
        self._settle(
            {
                call: failure(result, "user")
                if isinstance(result, str)
                else Answer(sample_output(result.drawn, result.prompt_logprobs), is_proto=True)
                for call, result in results.items()
            }
        )

    def _settle(self, answers: dict[str, Answer]) -> None:
        with self._lock:
            for call, made in answers.items():
                if call in self._answers:  # else the job was forgotten
                    self._answers[call] = (time.monotonic(), made)
        for call in answers:
            self._waiters.wake(call)

    def _forget_old(self) -> None:
        old = time.monotonic() - KEPT_S
        while self._answers and next(iter(self._answers.values()))[0] < old:
            call, _ = self._answers.popitem(last=False)
            del self._digests[call]
