"""Clients of reward servers inside the cluster: parallel calls with deadlines and retries.

submit(samples) ──▶ every reward ──▶ chunks ──▶ call
                                                  │ process died, longer than timeout_s: retry later
future ◀── weighted sum ◀── answers in order ◀────┘ retries used up: RewardError

A chunk has `batch_size` samples; for a reward of whole groups it is one group. A replica measures the time in
which its reward scores, and not the queue before that; only its loss ends the wait for its answer.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentResponse

from contracts.clients import Scoring
from contracts.errors import RewardError
from contracts.processes import timeline
from contracts.scores import Answer, MetricValue, Sample, Score
from reward_servers.by_part import ONE_TASK, ByPart, laid_out, places_for
from reward_servers.combine import union, weighted_sum
from reward_servers.groups import by_group
from reward_servers.serving.beside import Handle
from reward_servers.serving.deployments import ReplicaCount, handle_of
from reward_servers.serving.http import NotMeasurable, QueueFull
from reward_servers.serving.replicas import Counts, Late, Outcome, Scored, Traits
from reward_servers.serving.slots import Slots
from reward_servers.settings import Part, RewardServersSettings, ServerSettings

logger = logging.getLogger(__name__)

BACK_OFF_S = 0.25  # wait before the first retry; doubles each time
CLOSE_S = 5.0  # time for calls under way to end, when the client closes
QUEUE_POLL_S = 0.05
WARN_EVERY_S = 2.0

AHEAD = 4  # calls of a coroutine in a chunk, as a share of its concurrency: small ones show progress

Ask = Callable[..., DeploymentResponse]  # a remote method of a replica


class RemoteServer:
    """One deployed reward or metric, called from one event loop.

    It sends only as many calls at a time as the replicas accept. While another client fills the queue, a call
    waits for its turn; with `refuse_when_full` it raises `QueueFull` at once.

    Args:
        patience_s: the longest wait for a replica that measures its own time; None: the caller has a limit.
    """

    def __init__(
        self,
        kind: str,
        label: str,
        settings: ServerSettings,
        retries: int,
        *,
        refuse_when_full: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self._name, self._kind = f"{kind} {label}", kind
        self._handle = handle_of(kind, label)
        self._settings = settings
        self._retries = retries
        self._refuse_when_full, self._patience_s = refuse_when_full, patience_s
        self._warned_at = -math.inf
        self._slots = Slots(settings.max_ongoing_requests * settings.most_replicas)
        self.replica_count = ReplicaCount(kind, label, self._on_replicas, counted_at=time.monotonic())
        self._traits: Traits | None = None
        self.num_samples, self.num_cached = 0, 0
        self.num_waiting = 0  # samples without an answer yet
        self.is_lost = False  # since the last answer, a replica was lost
        self._counts: Counts = {}
        self._counting_turn = threading.Lock()

    async def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return one answer for each sample, in order.

        Raises:
            RewardError: the server gave no answer, even after retries.
            QueueFull: too many calls wait, and `refuse_when_full` is set.
        """
        if not samples:
            return []
        self.num_waiting += (left := len(samples))
        try:
            chunks = self._chunks(await self._own_traits(), samples)
            answers: list[Answer] = [(None, None)] * len(samples)

            async def ask(places: Sequence[int]) -> None:
                nonlocal left
                batch = [samples[place] for place in places]
                with timeline.span_beside("call", f"calls {self._name}"):
                    scored: Scored = await self._call(self._handle.score.remote, batch, is_patient=True)
                timeline.receive(scored.process, scored.spans)
                left -= len(places)
                self._count(scored)
                for place, answer in zip(places, scored.answers, strict=True):
                    answers[place] = answer

            await asyncio.gather(*map(ask, chunks))
            return answers
        finally:
            self.num_waiting -= left

    async def _own_traits(self) -> Traits:
        self._traits = self._traits or await self._call(self._handle.traits.remote, is_patient=True)
        return self._traits

    def _chunks(self, traits: Traits, samples: Sequence[Sample]) -> list[list[int]]:
        """Return the places of the samples of each call; no group is cut for a reward of whole groups."""
        if traits.scores_groups:
            return by_group(samples)
        size = self._settings.batch_size
        if traits.is_coroutine:
            size = min(size, math.ceil(self._settings.concurrency / AHEAD))
        places = list(range(len(samples)))
        return [places[begin : begin + size] for begin in range(0, len(places), size)]

    def _count(self, scored: Scored) -> None:
        num_samples = len(scored.answers)
        self.num_samples += num_samples
        self.num_waiting -= num_samples
        self.num_cached += scored.num_cached
        with self._counting_turn:
            for name, count in scored.counts.items():
                self._counts[name] = self._counts.get(name, 0.0) + count

    def take_counts(self) -> Counts:
        """Return what the reward has counted since the last call; any thread may call this."""
        with self._counting_turn:
            counts, self._counts = self._counts, {}
        return counts

    async def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        """Compute the metric over all samples at once; errors as for `score`.

        Raises:
            NotMeasurable: the metric can't be computed over these samples.
        """
        outcome: Outcome = await self._call(self._handle.compute.remote, samples)
        values, problem = outcome
        if values is None:
            raise NotMeasurable(problem)
        return values

    async def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text, or None if the grader finds no answers; errors as for `score`."""
        size = self._settings.batch_size
        all_answers: list[str | None] = []
        traits = await self._own_traits() if self._kind == "reward" else None
        # A coroutine's deadlines are of its scores; it finds answers in a thread.
        is_patient = traits is not None and traits.ends_by_itself and not traits.is_coroutine
        for begin in range(0, len(texts), size):
            some = await self._call(
                self._handle.answers.remote, texts[begin : begin + size], is_patient=is_patient
            )
            if some is None:
                return None
            all_answers += some
        return all_answers

    async def _call(self, ask: Ask, *batches: Sequence[Any], is_patient: bool = False) -> Any:
        """Call until there is an answer, within `timeout_s` unless the replica measures its time itself."""
        timeout_s = self._patience_s if is_patient else self._settings.timeout_s
        problem = remedy = ""
        for attempt in range(self._retries + 1):
            if attempt:
                self._warn(f"{problem}, retry {attempt} of {self._retries}")
                await asyncio.sleep(BACK_OFF_S * 2 ** (attempt - 1))
            try:
                if self._refuse_when_full:
                    return await asyncio.wait_for(self._answer(ask, batches), timeout_s)
                if not isinstance(self._handle, Handle):  # Serve's replicas may be scaled meanwhile
                    self.replica_count.refresh()
                async with self._slots:
                    if self.is_lost and isinstance(self._handle, Handle):  # Serve's calls wait by themselves
                        await self._handle.until_up()
                    return await asyncio.wait_for(self._answer(ask, batches), timeout_s)
            except TimeoutError as error:
                problem = f"no answer within {error.args[0] if error.args else timeout_s:g} s"
                remedy = "See its replica's log, or raise reward_servers.retries or its timeout_s"
            except (RayError, RayServeException) as error:
                self.is_lost = True
                problem = f"its process died ({type(error).__name__})"
                remedy = self._remedy_of_deaths()
        num_samples = sum(len(samples) for samples in batches)
        raise RewardError(
            f"{self._name}: {problem}, {self._retries + 1} times in a row, for {num_samples} samples. "
            f"{remedy}"
        )

    def _remedy_of_deaths(self) -> str:
        if self._kind != "reward" or self._settings.sandbox is not None:
            return "See its replica's log, or raise reward_servers.retries"
        label = self._name.removeprefix("reward ")
        return (
            f"If a text ends the process, reward_servers.{label}.sandbox={{}} scores the other texts and "
            "names that one; or raise reward_servers.retries"
        )

    async def _on_replicas(self, count: int) -> None:
        """Accept more calls where there are more replicas."""
        least = self._settings.max_replicas  # a server that scales itself must see the demand
        await self._slots.change(self._settings.max_ongoing_requests * max(count, least))

    def _warn(self, what: str) -> None:
        # A lost replica fails many calls at once; warn once.
        if time.monotonic() - self._warned_at > WARN_EVERY_S:
            self._warned_at = time.monotonic()
            logger.warning("%s: %s", self._name, what)

    async def _answer(self, ask: Ask, batches: Sequence[Sequence[Any]]) -> Any:
        while True:
            response = ask(*(list(samples) for samples in batches))
            try:
                reply = await response
                self.is_lost = False
                if isinstance(reply, Late):
                    raise TimeoutError(reply.after_s)
                return reply
            except asyncio.CancelledError:
                response.cancel()  # so that the replica does not go on in vain
                raise
            except RayTaskError as error:  # raised by the replica's code: a retry would change nothing
                raise RewardError(f"{self._name}: {type(error.cause).__name__}: {error.cause}") from None
            except BackPressureError as error:
                if self._refuse_when_full:
                    raise QueueFull(f"{self._name}: {error}") from None
                await asyncio.sleep(QUEUE_POLL_S)


class RewardClient:
    """A client that scores samples with deployed rewards, without blocking the caller."""

    def __init__(
        self, rewards: Sequence[Part], settings: RewardServersSettings, by_part: ByPart = ONE_TASK
    ) -> None:
        self._parts, self._by_part = tuple(rewards), by_part
        self._servers = [
            RemoteServer("reward", part.label, settings.for_label(part.label), settings.retries)
            for part in self._parts
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-client", daemon=True)
        self._thread.start()

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        """Return a future of one score for each sample, in order.

        The future raises RewardError if a server stays unreachable. A sample that a reward failed on gets a
        score without total instead.
        """
        return asyncio.run_coroutine_threadsafe(self._scores(tuple(samples)), self._loop)

    def cached(self) -> dict[str, float]:
        """Return the share of samples so far that each reward answered from its cache, by label."""
        return {
            part.label: server.num_cached / server.num_samples
            for part, server in zip(self._parts, self._servers, strict=True)
            if server.num_samples
        }

    def take_counts(self) -> dict[str, float]:
        """Return what the rewards have counted since the last call: {"reward/judge/tokens": 812.0}."""
        counts: dict[str, float] = {}
        for part, server in zip(self._parts, self._servers, strict=True):
            counts |= {f"reward/{part.label}/{name}": count for name, count in server.take_counts().items()}
        return counts

    def scoring(self) -> Scoring:
        """Return how far scoring has come, and which rewards lost a replica or still have work."""
        both = list(zip(self._parts, self._servers, strict=True))
        return Scoring(
            num_answered=sum(server.num_samples for _, server in both),
            at_work={part.label: server.num_waiting for part, server in both if server.num_waiting},
            lost=tuple(part.label for part, server in both if server.is_lost),
        )

    def close(self) -> None:
        """Cancel the futures of calls under way, and end the client's thread.

        A retry after Ray's end would start Ray anew.
        """

        async def give_up() -> None:
            counts = {count for server in self._servers if (count := server.replica_count.under_way)}
            under_way = asyncio.all_tasks() - {asyncio.current_task()}
            for task in under_way - counts:
                task.cancel()
            if counts:  # a thread that still asks Ray must end before Ray does, or it starts Ray anew
                await asyncio.wait(counts, timeout=CLOSE_S)
            for count in counts:
                count.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(give_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _scores(self, samples: Sequence[Sample]) -> list[Score]:
        both = zip(self._parts, self._servers, strict=True)
        answers = await asyncio.gather(*(self._ask(part.label, server, samples) for part, server in both))
        return weighted_sum(self._parts, answers)

    async def _ask(self, label: str, server: RemoteServer, samples: Sequence[Sample]) -> list[Answer]:
        places = places_for(self._by_part, label, samples)
        answers = await server.score([samples[place] for place in places])
        return laid_out(answers, places, len(samples))


def compute_metrics(
    metrics: Sequence[Part], samples: Sequence[Sample], timeout_s: float, retries: int = 2
) -> dict[str, MetricValue]:
    """Compute every deployed metric over all samples, in parallel.

    Raises:
        RewardError: a metric failed, or did not answer within `timeout_s`, even after retries.
    """

    async def compute() -> list[dict[str, MetricValue]]:
        settings = ServerSettings(timeout_s=timeout_s)
        servers = [RemoteServer("metric", part.label, settings, retries) for part in metrics]
        return await asyncio.gather(*(server.compute(samples) for server in servers))

    return union(metrics, asyncio.run(compute()))


def find_answers(
    graders: Sequence[tuple[str, Part]], texts: Sequence[str], settings: RewardServersSettings
) -> list[str | None] | None:
    """Return the answer in each text, by the first deployed grader that finds answers; None if none does.

    Args:
        graders: pairs of "reward" or "metric" and a part.

    Raises:
        RewardError: a grader did not answer, even after retries.
    """

    async def ask(kind: str, part: Part) -> list[str | None] | None:
        server_settings = settings.for_label(part.label)
        return await RemoteServer(kind, part.label, server_settings, settings.retries).answers(texts)

    by_grader = (asyncio.run(ask(kind, part)) for kind, part in graders)
    return next((answers for answers in by_grader if answers is not None), None)
