"""A run's parts in this process, without Ray: an engine in a thread, the learner, and the graders.

For models so small that starting processes takes longer than training. There is one worker, and failed parts
are not replaced. Importing this module imports torch.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import torch

from contracts.clients import PublishedWeights, Scoring, TokenNumbers
from contracts.rollout import Lease, Rollout
from contracts.scores import MetricValue, Sample, Score
from learner.learner import Learner
from reward_servers.by_part import ByPart
from reward_servers.evaluated_metrics import served_metrics
from reward_servers.local import LocalRewardClient
from reward_servers.server import MetricServer
from rollout_workers.engines.choice import choose_dtype
from rollout_workers.worker import RolloutWorker
from services.config.settings import RunSettings
from services.models.files import read_model
from services.training.loop.controller import Clients


@contextlib.contextmanager
def service_here(settings: RunSettings) -> Iterator[Clients]:
    """Load the run's models; yield their clients, and end the engine's thread afterwards."""
    if settings.rollout.num_threads:  # before the worker's thread starts, because it keeps this number
        torch.set_num_threads(settings.rollout.num_threads)
    algorithm, path = settings.algorithm, settings.model.path
    mask = algorithm.mask_rule() if algorithm.traits.masks else None
    chat = settings.chat_form(read_model(settings.model))
    environment = settings.environment.laid_out(by_template=chat is not None)
    tokenizer = settings.model.tokenizer or path
    engine = settings.rollout.engine if ":" in settings.rollout.engine else "transformers"
    worker = RolloutWorker(
        *(path, tokenizer, None, engine, settings.rollout, mask, None, environment), chat=chat
    )
    try:
        worker.ready()
        metrics = {part.label: MetricServer(part) for part in served_metrics(settings.metrics)}
        rewards = LocalRewardClient(settings.reward, by_part=settings.by_part)
        dtype = choose_dtype(settings.rollout.dtype, on_gpu=False)
        learner = Learner(
            settings.model,
            algorithm,
            settings.learner,
            seed=settings.seed,
            iterations=settings.iterations,
            sampling=settings.sampling(),
            shares_gpu=settings.rollout.sleep,
            engine_rounds=dtype != "float32",
        )
        graders = LocalRewards(rewards, metrics, settings.by_part)
        yield Clients(LocalWorkers(worker), graders, LocalLearner(learner, dtype))
    finally:
        worker.close()


class LocalWorkers:
    """`contracts.clients.RolloutClient` with one worker in a thread."""

    environment_restarts = 0
    idle_s, num_workers, num_up, num_quarantined = 0.0, 1, 1, 0

    def __init__(self, worker: RolloutWorker) -> None:
        self._worker = worker
        self._ahead: list[Rollout] = []

    def submit(self, leases: Sequence[Lease]) -> None:
        self._worker.submit(leases)

    def collect(self) -> list[Rollout]:
        finished = [*self._ahead, *self._worker.poll(0.05).rollouts]
        self._ahead.clear()
        return finished

    def cancel_all(self) -> None:
        self._worker.cancel_all()

    def sleep(self) -> None:
        assert self._worker.sleep()

    def scale(self, num_workers: int) -> None:
        raise NotImplementedError("one worker, a thread")

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        self._worker.submit(leases)
        missing = {lease.id for lease in leases}
        while missing:
            rollouts = self._worker.poll(1.0).rollouts
            self._ahead += [rollout for rollout in rollouts if rollout.lease_id not in missing]
            expected = [rollout for rollout in rollouts if rollout.lease_id in missing]
            missing -= {rollout.lease_id for rollout in expected}
            yield expected

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return self._worker.logprobs(texts)

    def load_weights(self, weights: PublishedWeights) -> None:
        self._worker.load_weights(weights.manifest, weights.arrays, weights.mask_arrays)


class LocalRewards:
    """`contracts.clients.RewardClient` whose graders run in this process."""

    def __init__(
        self, rewards: LocalRewardClient, metrics: Mapping[str, MetricServer], by_part: ByPart
    ) -> None:
        self._rewards, self._metrics, self._by_part = rewards, metrics, by_part

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        return self._rewards.submit(samples)

    def take_counts(self) -> dict[str, float]:
        return self._rewards.take_counts()

    def scoring(self) -> Scoring:
        return self._rewards.scoring()

    def cached(self) -> dict[str, float]:
        return {}

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        of_metrics = (metric.answers(texts) for metric in self._metrics.values())
        graded = (self._rewards.answers(texts), *of_metrics)
        return next((answers for answers in graded if answers is not None), None)

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        metrics = [metric for label, metric in self._metrics.items() if self._by_part.measures(label, part)]
        return {key: value for metric in metrics for key, value in metric.compute(samples).items()}


class LocalLearner:
    """`contracts.clients.LearnerClient` whose learner is in this process."""

    def __init__(self, learner: Learner, dtype: str) -> None:
        self._learner, self._dtype = learner, dtype

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        on_progress("score", 0, len(rollouts))
        return self._learner.update(rollouts)

    def measure(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        return self._learner.measure(rollouts)

    def logprobs(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> list[list[float]]:
        return self._learner.logprobs(rollouts)

    def token_numbers(self) -> Sequence[TokenNumbers]:
        return self._learner.token_numbers

    def plan(self, iterations: int) -> None:
        self._learner.iterations = iterations

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> bool:
        return False  # no other process can score meanwhile

    def restart(self, on_progress: Callable[[str, int, int], None]) -> None:
        raise NotImplementedError("the learner is in this process")

    def publish(self) -> PublishedWeights:
        manifest, arrays = self._learner.publish(self._dtype)
        return PublishedWeights(manifest, arrays, self._learner.publish_mask(self._dtype))

    def save(self, folder: str) -> None:
        self._learner.save(folder)

    def load(self, folder: str) -> None:
        self._learner.load(folder)

    def export(self, folder: str) -> None:
        self._learner.export(folder)
