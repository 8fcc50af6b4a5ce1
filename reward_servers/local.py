"""Rewards in this very process: the client's interface without a cluster, for scripts and tests."""

from collections.abc import Sequence
from concurrent.futures import Future

from contracts.scores import Sample, Score
from reward_servers.combine import weighted_sum
from reward_servers.server import RewardServer
from reward_servers.settings import Part


class LocalRewardClient:
    """Answers like `reward_servers.client.RewardClient`, except that `submit` scores before it returns."""

    def __init__(self, rewards: Sequence[Part]) -> None:
        self._parts = tuple(rewards)
        self._servers = [RewardServer(part) for part in self._parts]

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        future: Future[list[Score]] = Future()
        future.set_result(weighted_sum(self._parts, [server.score(samples) for server in self._servers]))
        return future

    def cached(self) -> dict[str, float]:
        """Nothing is remembered here."""
        return {}

    def close(self) -> None:
        """Nothing to let go of."""
