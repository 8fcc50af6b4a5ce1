"""Call the workers' processes; each call is named as a method of `RolloutWorker`.

A type checker and a search can follow `send(id, RolloutWorker.logprobs, texts=…)`. RLlib's actor manager
tracks calls in flight and healthy workers. It notices only deaths; `live_worker.py` notices live workers that
make no token.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray

from contracts.clients import PublishedWeights
from rollout_workers.worker import RolloutWorker

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """Handle of one worker's process for its start and end; each call returns a reference at once."""

    actor: Any  # Ray's handle of a `RolloutWorker`

    def ready(self) -> "ray.ObjectRef[int]":
        return self.actor.ready.remote()

    def load_weights(self, weights: PublishedWeights) -> "ray.ObjectRef[float]":
        return self.actor.load_weights.remote(weights.manifest, weights.arrays, weights.mask_arrays)

    def close(self) -> "ray.ObjectRef[None]":
        return self.actor.close.remote()

    def kill(self) -> None:
        ray.kill(self.actor)


_signature = cache(inspect.signature)


@dataclass(frozen=True, slots=True)
class _Method:
    """A worker's method by its name, because the worker's class may override it.

    RLlib names a method by a function, which is pickled by value at every call.
    """

    name: str

    def __call__(self, worker: RolloutWorker, **named: Any) -> Any:
        return getattr(worker, self.name)(**named)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Method, (self.name,)


class WorkerCalls:
    """Calls to live workers, by id; a worker has at most one call of each method in flight."""

    @cached_property
    def _manager(self) -> Any:
        from ray.rllib.utils.actor_manager import FaultTolerantActorManager

        return FaultTolerantActorManager(max_remote_requests_in_flight_per_actor=1)

    def prepare(self) -> None:
        """Import RLlib and torch, which takes seconds; otherwise the first `add` does."""
        assert self._manager is not None

    def add(self, worker: WorkerHandle) -> int:
        """Add a worker; return its id."""
        before = set(self._manager.actor_ids())
        self._manager.add_actors([worker.actor])
        (worker_id,) = set(self._manager.actor_ids()) - before
        return int(worker_id)

    def remove(self, worker_id: int) -> WorkerHandle:
        """Forget a worker and its calls."""
        return WorkerHandle(self._manager.remove_actor(worker_id))

    @property
    def workers(self) -> dict[int, WorkerHandle]:
        if "_manager" not in self.__dict__:  # none was added
            return {}
        return {worker_id: WorkerHandle(actor) for worker_id, actor in self._manager.actors().items()}

    def send(
        self,
        worker_id: int,
        method: Callable[Concatenate[RolloutWorker, Arguments], object],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> bool:
        """Call a worker's method. False: another call of it is still in flight, so this one is dropped."""
        _, *bound = _signature(method).bind(None, *arguments, **named).arguments.items()
        name = method.__name__
        return bool(
            self._manager.foreach_actor_async(
                _Method(name), tag=name, kwargs=dict(bound), remote_actor_ids=[worker_id]
            )
        )

    def answers(
        self, wait_s: float, *methods: Callable[..., Answer]
    ) -> Iterator[tuple[int, Answer | Exception]]:
        """Yield (worker id, answer or error) of the calls that have ended, after at most `wait_s` for all."""
        tags = [method.__name__ for method in methods]
        for result in self._manager.fetch_ready_async_reqs(tags=tags, timeout_seconds=wait_s):
            yield result.actor_id, result.get()
