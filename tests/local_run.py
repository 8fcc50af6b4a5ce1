"""`whetstone train` in this very process: the loop, an engine, a learner and graders, without Ray."""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console as Terminal

from contracts.clients import PublishedWeights, Scoring
from contracts.errors import InputError
from contracts.rollout import Lease, Rollout
from contracts.scores import MetricValue, Sample, Score
from contracts.settings import build
from learner.learner import Learner
from reward_servers.local import LocalRewardClient
from reward_servers.server import MetricServer
from rollout_workers.engines.choice import choose_dtype
from rollout_workers.worker import RolloutWorker
from services.config.settings import RunSettings
from services.loop.controller import Clients
from services.models.files import read_model
from services.preflight import preflight
from services.runs.folder import RunFolder
from services.runs.uploads import Uploads
from services.sources.annotated_data import with_iterations
from services.terminal.interrupts import StopRequest
from services.tracking.console import Console
from services.tracking.tracker import Tracker
from services.train.loop import controller
from services.train.train import open_folder


def train_here(settings: RunSettings) -> RunFolder:
    """A whole run, its checks included."""
    preflight.check(settings)
    settings = with_iterations(settings)
    console = Console(Terminal(file=io.StringIO()))
    folder, mirror = open_folder(settings, console)
    clients = Clients(LocalWorkers(settings), LocalRewards(settings), LocalLearner(settings))
    tracker = Tracker.start(settings.tracking, settings.output_dir, settings.run_name)
    uploads = Uploads(mirror, folder, console.note) if mirror else None
    controller(settings, clients, folder, tracker, console, StopRequest(), uploads).run()
    if uploads:
        assert uploads.finish() is None
    return folder


class LocalWorkers:
    """`contracts.clients.RolloutClient`: one worker, a thread."""

    environment_restarts = 0
    idle_s, num_workers, num_up, num_quarantined = 0.0, 1, 1, 0

    def __init__(self, settings: RunSettings) -> None:
        if settings.rollout.num_threads:  # before the worker's thread begins, which keeps the number of then
            torch.set_num_threads(settings.rollout.num_threads)
        mask = settings.algorithm.mask_rule() if settings.algorithm.traits.masks else None
        path = settings.model.path
        tokenizer = settings.model.tokenizer or path
        chat = settings.chat_form(read_model(settings.model))
        environment = settings.environment.laid_out(by_template=chat is not None)
        self._worker = RolloutWorker(
            *(path, tokenizer, None, "transformers", settings.rollout, mask, None, environment), chat=chat
        )
        self._worker.ready()
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
        asked = {lease.id for lease in leases}
        while asked:
            rollouts = self._worker.poll(1.0).rollouts
            self._ahead += [rollout for rollout in rollouts if rollout.lease_id not in asked]
            own = [rollout for rollout in rollouts if rollout.lease_id in asked]
            asked -= {rollout.lease_id for rollout in own}
            yield own

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return self._worker.logprobs(texts)

    def load_weights(self, weights: PublishedWeights) -> None:
        self._worker.load_weights(weights.manifest, weights.arrays, weights.mask_arrays)


class LocalRewards:
    """`contracts.clients.RewardClient`: graders that are called where they stand."""

    def __init__(self, settings: RunSettings) -> None:
        self._rewards = LocalRewardClient(settings.reward, by_part=settings.by_part)
        self._metrics = {part.label: MetricServer(part) for part in settings.metrics}
        self._by_part = settings.by_part

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        return self._rewards.submit(samples)

    def take_counts(self) -> dict[str, float]:
        return self._rewards.take_counts()

    def scoring(self) -> Scoring:
        return Scoring()

    def cached(self) -> dict[str, float]:
        return {}

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        found = (grader.answers(texts) for grader in (self._rewards, *self._metrics.values()))
        return next((answers for answers in found if answers is not None), None)

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        metrics = [own for label, own in self._metrics.items() if self._by_part.measures(label, part)]
        return {key: value for metric in metrics for key, value in metric.compute(samples).items()}


class LocalLearner:
    """`contracts.clients.LearnerClient`: the learner itself."""

    def __init__(self, settings: RunSettings) -> None:
        self._dtype = choose_dtype(settings.rollout.dtype, on_gpu=False)
        self._learner = Learner(
            settings.model,
            settings.algorithm,
            settings.learner,
            seed=settings.seed,
            iterations=settings.iterations,
            sampling=settings.sampling(),
            shares_gpu=settings.rollout.sleep,
            engine_rounds=self._dtype != "float32",
        )

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        on_progress("score", 0, len(rollouts))
        return self._learner.update(rollouts)

    def publish(self) -> PublishedWeights:
        manifest, arrays = self._learner.publish(self._dtype)
        return PublishedWeights(manifest, arrays, self._learner.publish_mask(self._dtype))

    def save(self, folder: str) -> None:
        self._learner.save(folder)

    def load(self, folder: str) -> None:
        self._learner.load(folder)

    def export(self, folder: str) -> None:
        self._learner.export(folder)


def small_run(model: Path, output: Path, **given: Any) -> RunSettings:
    """A run of the tests on a tiny model, without evaluations and checkpoints on its way."""
    whole = {
        "model": {"path": str(model)},
        "output_dir": str(output),
        "run_name": "run",
        "evaluate_every": 0,
        "save_every": 0,
        "evaluation": {"num_prompts": 2},
        "learner": {"device": "cpu", "num_threads": 1},
        "tracking": {"enabled": False},
        **given,
    }
    drawn = {"max_tokens": 4, "engine": "transformers", "kv_cache_gib": 0.01}
    return build(RunSettings, {**whole, "rollout": {**drawn, **given.get("rollout", {})}}, where="")


def told_at_start(asked: RunSettings) -> str:
    """The reason for which a run is refused."""
    with pytest.raises(InputError) as caught:
        preflight.check(asked)
    return str(caught.value)
