"""Calling reward servers from inside the cluster: in parallel, with deadlines, over the loss of replicas.

submit(samples) ──▶ every reward ──▶ chunks of batch_size ──▶ call, at most timeout_s
                                                                │ replica lost, no answer: again, later
future ◀── weighted sum ◀── answers in order ◀──────────────────┘ retries used up: RewardError
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from contracts.errors import InputError, RewardError
from contracts.scores import MetricValue, Sample, Score
from reward_servers.cache import Scored
from reward_servers.combine import union, weighted_sum
from reward_servers.http import NotMeasurable, QueueFull
from reward_servers.replicas import Outcome
from reward_servers.server import Answer
from reward_servers.settings import Part, RewardServersSettings, ServerSettings
from reward_servers.slots import Slots

logger = logging.getLogger(__name__)

BACK_OFF_S = 0.25  # before the first retry, then twice as long each time
CLOSE_S = 5.0  # for calls under way to be given up, at the end
QUEUE_POLL_S = 0.05
WARN_EVERY_S = 2.0
COUNT_EVERY_S = 2.0  # replicas, which `whetstone scale` may have changed


def deployment_name(kind: str, label: str) -> str:
    """`reward-rouge`: the name of both the Serve application and its only deployment."""
    return f"{kind}-{label}"


def num_replicas(kind: str, label: str) -> int:
    """How many replicas of it are up; 0 when it is not deployed."""
    name = deployment_name(kind, label)
    application = serve.status().applications.get(name)
    deployment = application and application.deployments.get(name)
    return deployment.replica_states.get("RUNNING", 0) if deployment else 0


class RemoteServer:
    """One deployed reward or metric. Its coroutines belong on one event loop.

    No more calls are under way at a time than the replicas take on, so that a call's time-out measures
    scoring and not the queue before it. While another client fills the queue, a call waits for its
    turn, unless `refuse_when_full` says to raise `QueueFull` at once.
    """

    def __init__(
        self, kind: str, label: str, settings: ServerSettings, retries: int, *, refuse_when_full: bool = False
    ) -> None:
        self._name, self._kind, self._label = f"{kind} {label}", kind, label
        self._handle = handle_of(kind, label)
        self._settings = settings
        self._retries = retries
        self._refuse_when_full = refuse_when_full
        self._warned_at = -math.inf
        self._slots = Slots(settings.max_ongoing_requests * settings.most_replicas)
        self._counting: asyncio.Task[None] | None = None
        self._counted_at = time.monotonic()
        self.num_samples, self.num_cached = 0, 0

    async def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """One answer a sample, in order.

        Raises:
            RewardError: the server gave no answer, retries included.
            QueueFull: too many calls wait, and this server is to refuse then.
        """
        size = self._settings.batch_size
        chunks = [samples[begin : begin + size] for begin in range(0, len(samples), size)]
        scored: list[Scored] = await asyncio.gather(*(self._call("score", chunk) for chunk in chunks))
        self.num_samples += len(samples)
        self.num_cached += sum(num_cached for _, num_cached in scored)
        return [answer for answers, _ in scored for answer in answers]

    async def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        """The metric over all samples at once; errors as for `score`."""
        outcome: Outcome = await self._call("compute", samples)
        values, problem = outcome
        if values is None:
            raise NotMeasurable(problem)
        return values

    async def _call(self, method: str, samples: Sequence[Sample]) -> Any:
        timeout_s = self._settings.timeout_s
        problem = ""
        for attempt in range(self._retries + 1):
            if attempt:
                self._warn(f"{problem}, retry {attempt} of {self._retries}")
                await asyncio.sleep(BACK_OFF_S * 2 ** (attempt - 1))
            try:
                if self._refuse_when_full:
                    return await asyncio.wait_for(self._ask(method, samples), timeout_s)
                self._follow_replicas()
                async with self._slots:
                    return await asyncio.wait_for(self._ask(method, samples), timeout_s)
            except TimeoutError:
                problem = f"no answer within {timeout_s:g} s"
            except (RayError, RayServeException) as error:
                problem = f"replica lost ({type(error).__name__})"
        raise RewardError(
            f"{self._name}: {problem}, {self._retries + 1} times in a row, for {len(samples)} samples. "
            "Its replica's log says more; reward_servers.retries and its timeout_s allow for more"
        )

    def _follow_replicas(self) -> None:
        """More replicas take on more calls: look now and then, beside the call, how many there are."""
        if time.monotonic() - self._counted_at < COUNT_EVERY_S:
            return
        self._counted_at = time.monotonic()

        async def count() -> None:
            found = await asyncio.to_thread(num_replicas, self._kind, self._label)
            if found:
                least = self._settings.max_replicas  # what scales itself is to see the demand
                await self._slots.change(self._settings.max_ongoing_requests * max(found, least))

        self._counting = asyncio.create_task(count())

    def _warn(self, what: str) -> None:
        # A lost replica takes many calls along; it is said once.
        if time.monotonic() - self._warned_at > WARN_EVERY_S:
            self._warned_at = time.monotonic()
            logger.warning("%s: %s", self._name, what)

    async def _ask(self, method: str, samples: Sequence[Sample]) -> Any:
        while True:
            response = getattr(self._handle, method).remote(list(samples))
            try:
                return await response
            except asyncio.CancelledError:
                response.cancel()  # so that the replica does not work for nobody
                raise
            except RayTaskError as error:  # raised in the replica: no retry will change it
                raise RewardError(f"{self._name}: {type(error.cause).__name__}: {error.cause}") from None
            except BackPressureError as error:
                if self._refuse_when_full:
                    raise QueueFull(f"{self._name}: {error}") from None
                await asyncio.sleep(QUEUE_POLL_S)


class RewardClient:
    """Scores samples with deployed rewards, without blocking the caller."""

    def __init__(self, rewards: Sequence[Part], settings: RewardServersSettings) -> None:
        self._parts = tuple(rewards)
        self._servers = [
            RemoteServer("reward", part.label, settings.for_label(part.label), settings.retries)
            for part in self._parts
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-client", daemon=True)
        self._thread.start()

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        """One score a sample, in order, once every reward has answered.

        The future raises RewardError when a server stays unreachable; a sample that a reward failed on
        is no such error, but a score without total.
        """
        return asyncio.run_coroutine_threadsafe(self._scores(tuple(samples)), self._loop)

    def cached(self) -> dict[str, float]:
        """The share of the samples so far that each reward knew already, by label."""
        return {
            part.label: server.num_cached / server.num_samples
            for part, server in zip(self._parts, self._servers, strict=True)
            if server.num_samples
        }

    def close(self) -> None:
        """End the client's thread. What is still under way is given up: its futures are cancelled.

        A call that is tried again after Ray's end would start Ray anew.
        """

        async def give_up() -> None:
            under_way = asyncio.all_tasks() - {asyncio.current_task()}
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            # Whoever still asks Ray in a thread must be done before Ray ends, or starts it anew.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), CLOSE_S)

        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(give_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _scores(self, samples: Sequence[Sample]) -> list[Score]:
        answers = await asyncio.gather(*(server.score(samples) for server in self._servers))
        return weighted_sum(self._parts, answers)


def compute_metrics(
    metrics: Sequence[Part], samples: Sequence[Sample], timeout_s: float, retries: int = 2
) -> dict[str, MetricValue]:
    """Every deployed metric over all samples, in parallel.

    Raises:
        RewardError: a metric failed, or did not answer within `timeout_s`, retries included.
    """

    async def compute() -> list[dict[str, MetricValue]]:
        settings = ServerSettings(timeout_s=timeout_s)
        servers = [RemoteServer("metric", part.label, settings, retries) for part in metrics]
        return await asyncio.gather(*(server.compute(samples) for server in servers))

    return union(metrics, asyncio.run(compute()))


def handle_of(kind: str, label: str) -> Any:
    """What calls a deployed reward or metric.

    Raises:
        InputError: it is not deployed.
    """
    name = deployment_name(kind, label)
    try:
        return serve.get_deployment_handle(name, app_name=name)
    except (RayServeException, KeyError) as error:
        raise InputError(f"{kind} {label} is not deployed: {error}") from None
