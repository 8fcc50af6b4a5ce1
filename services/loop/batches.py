"""Sources of training batches; the training loop uses only the `BatchSource` interface.

Online         the policy answers prompts, and the update waits for it
Refilled       the same, and prompts that teach nothing are replaced (`refilled.py`)
RolloutStream  the policy answers prompts while the learner trains (`rollout_stream.py`)
Demonstrated   reference texts of prompts, as if the policy had written them
Expert         an expert plays in the environment
FromData       a data set's responses
Mixed          one of the first five, with a data set's responses beside it
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from contracts.clients import FleetClient
from contracts.rollout import Lease
from reward_servers.settings import Part
from services.loop.collecting import Collected, Collector, FailureBudget, expect_some
from services.loop.evaluations.baselines import played_by
from services.loop.statistics.iteration_info import WorkerMeter
from services.sources.leasing import LeaseSource
from services.sources.offline import OfflineSource

State = Mapping[str, Any]
NOTHING_GENERATED = {"throughput/generated_tokens_per_s": 0.0}


class BatchSource(Protocol):
    """Source of batches, in an order that a resumed run continues exactly."""

    @property
    def rewards(self) -> tuple[Part, ...]:
        """The rewards whose weighted sum is a rollout's reward."""
        ...

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
        """Continue from `state`; rollouts in progress are dropped.

        Raises:
            InputError: the data set has changed.
        """
        ...

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return metrics of how the batch was made, in an iteration that took `iteration_s` seconds."""
        ...


class Prompted(BatchSource):
    """A fixed number of prompts an iteration, as leases; `collect` turns them into rollouts."""

    def __init__(
        self,
        prompts: LeaseSource,
        num_prompts: int,
        collect: Callable[[Sequence[Lease]], Collected],
        failures: FailureBudget,
        rewards: tuple[Part, ...],
    ) -> None:
        self._prompts, self._num_prompts, self._collect = prompts, num_prompts, collect
        self._failures, self._rewards = failures, rewards

    @property
    def rewards(self) -> tuple[Part, ...]:
        return self._rewards

    def next(self, done: int) -> Collected:
        found = self._collect(self._prompts.lease(self._num_prompts))
        self._prompts.finish(self._num_prompts, found.rollouts)
        return expect_some(found, self._failures, done + 1)

    def state(self) -> State:
        return self._prompts.state()

    def restore(self, state: State) -> None:
        self._prompts.restore(state)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return NOTHING_GENERATED | self._prompts.metrics()


class Demonstrated(Prompted):
    """Reference texts of the prompts as rollouts; `collect` is a `Demonstrations`."""


class Expert(Prompted):
    """Episodes that an expert plays; only the environment rewards them."""

    def __init__(
        self, prompts: LeaseSource, num_prompts: int, collector: Collector, rewards: tuple[Part, ...]
    ) -> None:
        watching = replace(collector, judging=replace(collector.judging, at="never"))
        super().__init__(
            prompts,
            num_prompts,
            lambda leases: watching(played_by("expert", leases)),
            collector.failures,
            rewards,
        )


class Online(Prompted):
    """Rollouts that the policy generates with exactly the weights that the update then changes."""

    def __init__(
        self,
        prompts: LeaseSource,
        num_prompts: int,
        collector: Collector,
        workers: FleetClient,
        rewards: tuple[Part, ...],
    ) -> None:
        super().__init__(prompts, num_prompts, collector, collector.failures, rewards)
        self._meter = WorkerMeter(workers)

    def next(self, done: int) -> Collected:
        self._meter.begin()
        return super().next(done)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return self._meter.info(iteration_s) | self._prompts.metrics()


class FromData(BatchSource):
    """Responses of a data set; nothing is generated."""

    def __init__(self, data: OfflineSource, num_examples: int) -> None:
        self._data, self._num_examples = data, num_examples

    @property
    def rewards(self) -> tuple[Part, ...]:
        return self._data.rewards

    def next(self, done: int) -> Collected:
        started = time.perf_counter()
        return Collected(self._data.next(self._num_examples), rollout_s=time.perf_counter() - started)

    def state(self) -> State:
        return self._data.state()

    def restore(self, state: State) -> None:
        self._data.restore(state)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return NOTHING_GENERATED


class Mixed(BatchSource):
    """Batches of another source, each with `num_examples` examples of a data set."""

    def __init__(self, own: BatchSource, data: OfflineSource, num_examples: int) -> None:
        self._own, self._data, self._num_examples = own, data, num_examples

    @property
    def rewards(self) -> tuple[Part, ...]:
        return self._own.rewards

    def next(self, done: int) -> Collected:
        found = self._own.next(done)
        found.from_data = self._data.draw(self._num_examples)
        return found

    def attend(self) -> None:
        self._own.attend()

    def prepare(self, done: int) -> None:
        self._own.prepare(done)

    def state(self) -> State:
        return {"prompts": self._own.state(), "data": self._data.state()}

    def restore(self, state: State) -> None:
        self._own.restore(state["prompts"])
        self._data.restore(state["data"])

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return self._own.describe(batch, iteration_s)
