"""Sources of training batches; the training loop uses only the `BatchSource` interface.

Online         the policy answers prompts before the update
Refilled       Online, with prompts that teach nothing replaced (`refilled.py`)
RolloutStream  the policy answers prompts while the learner trains (`rollout_stream.py`)
Prompted       reference texts of prompts, as if the policy had written them; or an expert plays
FromData       a data set's responses
Mixed          one of the first four, mixed with a data set's responses
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from contracts.clients import FleetClient
from contracts.rollout import Lease
from reward_servers.settings import Part
from services.training.loop.collecting import Collected, Collector, FailureBudget, expect_some
from services.training.loop.evaluations.baselines import played_by
from services.training.loop.statistics.iteration_info import WorkerMeter
from services.training.sources.leasing import LeaseSource
from services.training.sources.offline import OfflineSource

State = Mapping[str, Any]
NOTHING_GENERATED = {"throughput/generated_tokens_per_s": 0.0}


class BatchSource(Protocol):
    """Source of batches, in an order that a resumed run continues exactly."""

    rewards: tuple[Part, ...]  # rewards whose weighted sum is a rollout's reward

    def next(self, done: int) -> Collected:
        """Return the batch of the iteration after `done` ones.

        Raises:
            RunError: every rollout of the batch was lost.
            InputError: every rollout was lost, for a reason that the user can fix.
        """
        ...

    def attend(self) -> None:
        """Take care of rollouts in progress; called often while the learner trains."""
        return

    def prepare(self, done: int) -> None:
        """Start rollouts of coming batches; the workers' weights are those after `done` iterations."""
        return

    def state(self) -> State:
        """Return the position in the order, after the last batch that `next` returned."""
        ...

    def restore(self, state: State) -> None:
        """Continue from `state`; drop rollouts in progress.

        Raises:
            InputError: the data set has changed.
        """
        ...

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return metrics of how the batch was made, in an iteration that took `iteration_s` seconds."""
        ...


@dataclass(eq=False)
class Prompted(BatchSource):
    """Source with a fixed number of prompts an iteration. `collect` turns their leases into rollouts."""

    prompts: LeaseSource
    num_prompts: int
    collect: Callable[[Sequence[Lease]], Collected]
    failures: FailureBudget
    rewards: tuple[Part, ...]

    def next(self, done: int) -> Collected:
        collected = self.collect(self.prompts.lease(self.num_prompts))
        self.prompts.finish(self.num_prompts, collected.rollouts)
        return expect_some(collected, self.failures, done + 1)

    def state(self) -> State:
        return self.prompts.state()

    def restore(self, state: State) -> None:
        self.prompts.restore(state)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return NOTHING_GENERATED | self.prompts.metrics()


def expert(
    prompts: LeaseSource, num_prompts: int, collector: Collector, rewards: tuple[Part, ...]
) -> Prompted:
    """Return a source of episodes that an expert plays; only the environment rewards them."""
    watching = replace(collector, judging=replace(collector.judging, at="never"))

    def play(leases: Sequence[Lease]) -> Collected:
        return watching(played_by("expert", leases))

    return Prompted(prompts, num_prompts, play, collector.failures, rewards)


@dataclass(eq=False)
class Generated(BatchSource):
    """Rollouts that the policy generates for leased prompts; the base of the sources that do so."""

    prompts: LeaseSource
    num_prompts: int
    collector: Collector
    workers: FleetClient
    rewards: tuple[Part, ...]

    def __post_init__(self) -> None:
        self.meter = WorkerMeter(self.workers)

    def state(self) -> State:
        """Return the prompts' state; a resumed run leases again what is not trained on."""
        return self.prompts.state()

    def restore(self, state: State) -> None:
        self.prompts.restore(state)


class Online(Generated):
    """Rollouts that the policy generates with its newest weights."""

    def next(self, done: int) -> Collected:
        self.meter.begin()
        collected = self.collector(self.prompts.lease(self.num_prompts))
        self.prompts.finish(self.num_prompts, collected.rollouts)
        return expect_some(collected, self.collector.failures, done + 1)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return self.meter.info(iteration_s) | self.prompts.metrics()


@dataclass(eq=False)
class FromData(BatchSource):
    """Responses of a data set, without generation."""

    data: OfflineSource
    num_examples: int

    def __post_init__(self) -> None:
        self.rewards = self.data.rewards

    def next(self, done: int) -> Collected:
        started = time.perf_counter()
        return Collected(self.data.next(self.num_examples), rollout_s=time.perf_counter() - started)

    def state(self) -> State:
        return self.data.state()

    def restore(self, state: State) -> None:
        self.data.restore(state)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return NOTHING_GENERATED


@dataclass(eq=False)
class Around(BatchSource):
    """Batches of another source; the base of the sources that add to them."""

    source: BatchSource

    def __post_init__(self) -> None:
        self.rewards = self.source.rewards

    def next(self, done: int) -> Collected:
        return self.source.next(done)

    def attend(self) -> None:
        self.source.attend()

    def prepare(self, done: int) -> None:
        self.source.prepare(done)

    def state(self) -> State:
        return self.source.state()

    def restore(self, state: State) -> None:
        self.source.restore(state)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return self.source.describe(batch, iteration_s)


@dataclass(eq=False)
class Mixed(Around):
    """Batches of another source, each with `num_examples` examples of a data set."""

    data: OfflineSource
    num_examples: int

    def next(self, done: int) -> Collected:
        collected = super().next(done)
        collected.from_data = self.data.draw(self.num_examples)
        return collected

    def state(self) -> State:
        return {"prompts": super().state(), "data": self.data.state()}

    def restore(self, state: State) -> None:
        super().restore(state["prompts"])
        self.data.restore(state["data"])
