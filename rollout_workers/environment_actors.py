"""Run environments as Ray actors, so that one may hang or die without harm to the worker."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contracts.errors import EpisodeError
from contracts.processes.gpus import hidden_unless
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.pool import Environments, Failure, LocalEnvironments, Reply, episode_error
from rollout_workers.fleet.processes import EnvironmentHostProcess

CLOSE_S = 3.0  # time for all environments to close before they are killed


@dataclass(slots=True)
class _Seat:
    actor: Any  # Ray's handle of an `EnvironmentHostProcess`
    process: "ray.ObjectRef[int]"  # the process id, once it runs
    awaited: "ray.ObjectRef | None" = None  # the awaited answer
    what: str = ""
    since: float = 0.0
    limit: str = ""  # the setting of the longest wait
    limit_s: float = 0.0

    def ask(self, call: "ray.ObjectRef", what: str, limit: str, limit_s: float) -> None:
        """Start to wait for this call's answer."""
        self.awaited, self.what, self.since = call, what, time.monotonic()
        self.limit, self.limit_s = limit, limit_s


class RayEnvironments:
    """Ray actors as `rollout_workers.environments.pool.Environments`, started one by one when needed.

    They live on the worker's node and end with the worker.
    """

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self._seats: dict[int, _Seat] = {}
        self._free = list(range(settings.num_parallel))
        self._node = ray.get_runtime_context().get_node_id()
        self.num_restarts = 0

    def take(self) -> int | None:
        if not self._free:
            return None
        seat = self._free.pop(0)
        if seat not in self._seats:
            self._seats[seat] = self._start()
        return seat

    def reset(self, seat: int, prompt: Prompt, seed: int) -> None:
        call = self._seats[seat].actor.reset.remote(prompt, seed)
        self._seats[seat].ask(call, "reset", "start_timeout_s", self._settings.start_timeout_s)

    def step(self, seat: int, text: str) -> None:
        call = self._seats[seat].actor.step.remote(text)
        self._seats[seat].ask(call, "step", "step_timeout_s", self._settings.step_timeout_s)

    def overhear(self, seat: int, text: str) -> None:
        call = self._seats[seat].actor.overhear.remote(text)
        self._seats[seat].ask(call, "overhear", "step_timeout_s", self._settings.step_timeout_s)

    def receive(self, wait_s: float) -> list[tuple[int, Reply]]:
        seats = {seat.awaited: number for number, seat in self._seats.items() if seat.awaited is not None}
        if not seats:
            return []
        ray.wait(list(seats), num_returns=1, timeout=wait_s, fetch_local=True)
        ready, _ = ray.wait(list(seats), num_returns=len(seats), timeout=0)
        answers = [(seats[reference], self._answer(seats[reference])) for reference in ready]
        now = time.monotonic()
        for number, seat in self._seats.items():
            if seat.awaited is not None and now - seat.since > seat.limit_s:
                error = EpisodeError(
                    f"{seat.what}() did not answer for {seat.limit_s:g} s; raise environment.{seat.limit}"
                )
                self._replace(number)
                answers.append((number, Failure(error)))
        return answers

    @property
    def num_asked(self) -> int:
        return sum(seat.awaited is not None for seat in self._seats.values())

    def give_back(self, seat: int) -> None:
        if self._settings.can_leave:  # so no caller waits for its end
            self._seats[seat].actor.leave.remote()
        self._free.append(seat)

    def close(self) -> None:
        closing = [seat.actor.close.remote() for seat in self._seats.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for seat in self._seats.values():
            self._end(seat)
        self._seats.clear()

    def _start(self) -> _Seat:
        near = NodeAffinitySchedulingStrategy(self._node, soft=False)  # the worker must reach its process
        environment = {"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **hidden_unless(0)}}
        actor = (
            ray.remote(EnvironmentHostProcess)
            .options(num_cpus=0, scheduling_strategy=near, runtime_env=environment)
            .remote(self._settings)
        )
        return _Seat(actor, actor.process.remote())

    def _answer(self, number: int) -> Reply:
        seat = self._seats[number]
        reference, seat.awaited = seat.awaited, None
        try:
            reply: Reply = ray.get(reference)
            return reply
        except ray.exceptions.RayTaskError as error:
            self._replace(number)
            return Failure(episode_error(error.cause))
        except ray.exceptions.RayError as error:
            self._replace(number, is_dead=True)
            return Failure(EpisodeError(f"its process died ({type(error).__name__})"))

    def _replace(self, number: int, is_dead: bool = False) -> None:
        self.num_restarts += 1
        self._end(self._seats[number], is_dead)
        self._seats[number] = self._start()

    def _end(self, seat: _Seat, is_dead: bool = False) -> None:
        ray.kill(seat.actor)
        if is_dead:  # another process may have its id by now
            return
        ready, _ = ray.wait([seat.process], timeout=0)
        with contextlib.suppress(ray.exceptions.RayError, OSError):
            if ready:  # a stopped process does not react to Ray
                os.kill(ray.get(seat.process), signal.SIGKILL)


def start_environments(settings: EnvironmentSettings) -> Environments:
    """Make environments as actors, or in this process if `environment.isolated=false`."""
    return RayEnvironments(settings) if settings.isolated else LocalEnvironments(settings)
