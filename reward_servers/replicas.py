"""What runs in a replica: one grader or one metric, loaded once, behind a cache and a queue of batches."""

import asyncio
from collections.abc import Sequence

from contracts.errors import RewardError
from contracts.scores import MetricValue, Sample
from reward_servers.batches import Batches
from reward_servers.cache import AnswerCache, Scored
from reward_servers.sandbox import SandboxedServer
from reward_servers.server import MetricServer, RewardServer, is_deterministic
from reward_servers.settings import Part, ServerSettings

# A metric's values, or why there are none.
Outcome = tuple[dict[str, MetricValue] | None, str | None]


class RewardReplica:
    """What runs in a replica of a reward."""

    def __init__(self, part: Part, settings: ServerSettings) -> None:
        limits = settings.sandbox
        if limits is None:
            score, can_remember = RewardServer(part).score, is_deterministic(part)
        else:  # whose code is not even imported here
            sandbox = SandboxedServer(part, limits)
            score, can_remember = sandbox.score, sandbox.is_deterministic
        self._batches = Batches(score, settings.batch_size)
        self._cache = AnswerCache(self._batches.score, settings.cache_size if can_remember else 0)
        self._patience_s = 2 * settings.timeout_s

    async def score(self, samples: Sequence[Sample]) -> Scored:
        return await self._cache.score(samples)

    def check_health(self) -> None:
        """Serve replaces a replica that raises here: a grader that hangs is cured by a fresh one."""
        if self._batches.busy_s > self._patience_s:
            raise RewardError(f"the grader has been at one batch for {self._batches.busy_s:.0f} s")


class MetricReplica:
    """What runs in a replica of a metric: one corpus at a time."""

    def __init__(self, part: Part) -> None:
        self._server = MetricServer(part)
        self._turn = asyncio.Lock()

    async def compute(self, samples: Sequence[Sample]) -> Outcome:
        async with self._turn:
            try:
                return await asyncio.to_thread(self._server.compute, samples), None
            except RewardError as error:  # handed over as data: Serve prints the traceback of what is raised
                return None, str(error)
