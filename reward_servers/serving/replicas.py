"""The replicas: one reward behind a cache and a queue of batches, or one metric, loaded once."""

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.errors import RewardError
from contracts.processes import timeline
from contracts.processes.timeline import Span
from contracts.scores import Answer, MetricValue, Sample
from contracts.secrets.output import guard_process, redacted_errors
from reward_servers.part_checks import is_deterministic
from reward_servers.server import MetricServer, RewardServer
from reward_servers.serving.batches import Batches, TooLate
from reward_servers.serving.cache import AnswerCache
from reward_servers.serving.deployments import ReplicaCount
from reward_servers.serving.ray_job import prepare_worker
from reward_servers.settings import Part, ServerSettings
from reward_servers.user_rewards.sandbox import SandboxedServer
from reward_servers.user_rewards.trial import Trial, Verdict

# The names and amounts that a reward has counted since the last call: {"tokens": 812.0}
Counts = dict[str, float]
# A metric's values, or the reason why there are none.
Outcome = tuple[dict[str, MetricValue] | None, str | None]


@dataclass(frozen=True, slots=True)
class Traits:
    """Way in which a reward wants to be called."""

    scores_groups: bool  # it gets all samples of a prompt at once
    is_coroutine: bool
    ends_by_itself: bool  # its calls have deadlines of their own, in place of `timeout_s`


@dataclass(frozen=True, slots=True)
class Scored:
    """Answers, the number of them that came from the cache, and what the reward counted meanwhile.

    Example: `Scored([(0.5, None)], num_cached=0, counts={"tokens": 812.0})`
    """

    answers: list[Answer]
    num_cached: int
    counts: Counts = field(default_factory=dict)
    spans: tuple[Span, ...] = ()  # the replica's timeline
    process: str = ""  # the replica's name


@dataclass(frozen=True, slots=True)
class Late:
    """Answer to a call that has taken longer than `timeout_s`: Serve would print an exception's traceback.

    Example: `Late(after_s=60.0)`
    """

    after_s: float


class RewardReplica:
    """A replica of a reward.

    Args:
        is_alone: no other replica shares the rate of a coroutine's calls.
    """

    def __init__(self, part: Part, settings: ServerSettings, *, is_alone: bool = False) -> None:
        guard_process(part)
        prepare_worker()
        timeline.switch_on_where_asked()
        self._name = f"reward {part.label} ({os.getpid()})"
        self._server: RewardServer | SandboxedServer
        with redacted_errors(), timeline.span("loads"):
            if settings.sandbox is None:
                self._server, can_remember = RewardServer(part, settings), is_deterministic(part)
            else:  # a sandboxed reward's code is not even imported here
                self._server = SandboxedServer(part, settings.sandbox, settings)
                can_remember = self._server.is_deterministic
        groups = self._server.scores_groups
        self._traits = Traits(groups, self._server.is_coroutine, self._server.ends_by_itself)
        # A coroutine can block its loop, and a confined reward ends by its own deadlines.
        ends_surely = self._server.ends_by_itself and not self._server.is_coroutine
        self._timeout_s = math.inf if ends_surely else settings.timeout_s
        self._patience_s = 2 * self._timeout_s
        self._batches = Batches(self._server.score, None if groups else settings.batch_size, self._timeout_s)
        score = self._batches.score
        if isinstance(self._server, RewardServer) and self._server.is_coroutine:
            score = self._server.scored
        size = settings.cache_size if can_remember else 0
        self._cache = AnswerCache(score, size, lambda: self._server.reads_groups, whole_groups=groups)
        self._replicas: ReplicaCount | None = None  # where they share a rate
        if self._server.is_coroutine and settings.rate is not None and not is_alone:
            self._replicas = ReplicaCount("reward", part.label, self._on_replicas)

    async def traits(self) -> Traits:
        return self._traits

    async def try_out(self, trial: Trial) -> Verdict:
        """Call the grader on a few texts before the first batch comes."""
        return await asyncio.to_thread(self._server.try_out, trial)

    async def score(self, samples: Sequence[Sample]) -> Scored | Late:
        if self._replicas is not None:
            self._replicas.refresh()
        try:
            with timeline.span_beside("scores", "calls"):
                answers, num_cached = await self._cache.score(samples)
        except TooLate:
            return Late(self._timeout_s)
        return Scored(answers, num_cached, self._server.take_counts(), timeline.drain(), self._name)

    async def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        return await asyncio.to_thread(self._server.answers, texts)

    async def _on_replicas(self, count: int) -> None:
        if isinstance(self._server, RewardServer):
            self._server.share_rate(count)

    def check_health(self) -> None:
        """Raise if the grader hangs, so that Serve replaces this replica."""
        busy_s = max(self._batches.busy_s, self._server.busy_s)
        if busy_s > self._patience_s:
            raise RewardError(f"the grader has been at one batch for {busy_s:.0f} s")


class MetricReplica:
    """A replica of a metric, which computes one corpus at a time."""

    def __init__(self, part: Part) -> None:
        guard_process(part)
        prepare_worker()
        with redacted_errors():
            self._server = MetricServer(part)
        self._turn = asyncio.Lock()

    async def try_out(self, trial: Trial) -> Verdict:
        """Call the metric on a few texts."""
        return await asyncio.to_thread(self._server.try_out, trial)

    async def compute(self, samples: Sequence[Sample]) -> Outcome:
        async with self._turn:
            try:
                return await asyncio.to_thread(self._server.compute, samples), None
            except RewardError as error:  # returned as data: Serve would print the traceback of an exception
                return None, str(error)

    async def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        async with self._turn:
            return await asyncio.to_thread(self._server.answers, texts)

    def check_health(self) -> None:
        """Show that the process is alive; a metric has no deadline of its own here."""
