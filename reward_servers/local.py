"""A client whose rewards run in this process, without a cluster, for scripts and tests."""

from collections.abc import Sequence
from concurrent.futures import Future

from contracts.clients import Scoring
from contracts.scores import Answer, Sample, Score
from reward_servers.by_part import ONE_TASK, ByPart, laid_out, places_for
from reward_servers.combine import weighted_sum
from reward_servers.server import RewardServer
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.trial import Trial, is_tried


class LocalRewardClient:
    """A client like `serving.client.RewardClient`, except that `submit` scores before it returns."""

    def __init__(
        self,
        rewards: Sequence[Part],
        settings: RewardServersSettings | None = None,
        by_part: ByPart = ONE_TASK,
    ) -> None:
        """Load the rewards. Only the settings that limit coroutines apply."""
        self._parts, self._by_part = tuple(rewards), by_part
        servers = settings or RewardServersSettings()
        self._servers = [RewardServer(part, servers.for_label(part.label)) for part in self._parts]

    def try_out(self, trial: Trial) -> list[str]:
        """Call each of the user's own classes, and judges, on a few texts; return warnings.

        Raises:
            InputError: an answer is wrong.
        """
        both = zip(self._parts, self._servers, strict=True)
        verdicts = [server.try_out(trial) for part, server in both if is_tried(part)]
        for verdict in verdicts:
            verdict.check()
        return [verdict.warning for verdict in verdicts if verdict.warning]

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        future: Future[list[Score]] = Future()
        both = zip(self._parts, self._servers, strict=True)
        answers = [self._ask(part.label, server, samples) for part, server in both]
        future.set_result(weighted_sum(self._parts, answers))
        return future

    def _ask(self, label: str, server: RewardServer, samples: Sequence[Sample]) -> list[Answer]:
        places = places_for(self._by_part, label, samples)
        answers = server.score([samples[place] for place in places]) if places else []
        return laid_out(answers, places, len(samples))

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text, by the first reward that finds answers; None if none does."""
        by_server = (server.answers(texts) for server in self._servers)
        return next((answers for answers in by_server if answers is not None), None)

    def scoring(self) -> Scoring:
        """Return that nothing waits: `submit` has scored all."""
        return Scoring()

    def cached(self) -> dict[str, float]:
        """Return no shares, since this client has no cache."""
        return {}

    def take_counts(self) -> dict[str, float]:
        """Return what the rewards have counted since the last call: {"reward/judge/tokens": 812.0}."""
        return {
            f"reward/{part.label}/{name}": count
            for part, server in zip(self._parts, self._servers, strict=True)
            for name, count in server.take_counts().items()
        }

    def close(self) -> None:
        """Do nothing: this client holds no thread."""
