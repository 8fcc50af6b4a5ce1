"""Graders beside the driver: their processes, which Ray starts again, and handles of the shape of Serve's.

driver ── handle.score.remote(samples) ──▶ GraderProcess     dead: Ray starts it again, the call is repeated
   └───── does it answer? ───────────────▶                   hanging: `actor_watch` kills it first
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from contracts.errors import DeadlineExceeded, InputError
from reward_servers.serving import deployments
from reward_servers.serving.grader_process import GraderProcess, Hosted
from reward_servers.serving.ray_job import replica_environment

MORE_CALLS = 8  # questions about health and answers, beside the scores under way
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Response:
    """A call under way: await it, wait for its `result`, or cancel it."""

    reference: "ray.ObjectRef[Any]"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.reference.__await__()

    def result(self, timeout_s: float) -> Any:
        return ray.get(self.reference, timeout=timeout_s)

    def cancel(self) -> None:
        ray.cancel(self.reference)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a grader in another process."""

    remote: Callable[..., Response]


@dataclass(frozen=True, slots=True)
class Handle:
    """Handle of one grader beside the driver."""

    name: str
    actor: Any  # of the GraderProcess
    start_timeout_s: float

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_"):
            raise AttributeError(method)
        return Method(lambda *arguments: Response(self.actor.call.remote(self.name, method, *arguments)))

    async def until_up(self) -> None:
        """Wait for a lost process's successor: Ray refuses calls meanwhile, and each would count as a try."""
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            try:
                await self.actor.__ray_ready__.remote()
                return
            except RayActorError:
                await asyncio.sleep(POLL_S)


def start(alone: Sequence[Hosted], together: Sequence[Hosted], start_timeout_s: float) -> list[Handle]:
    """Start a process for each grader of `alone`, and one for all of `together`; don't wait for them."""
    handles = []
    groups = [[grader] for grader in alone]
    for graders in [*groups, list(together)] if together else groups:
        calls = sum(grader.settings.max_ongoing_requests for grader in graders)
        actor = ray.remote(GraderProcess).options(
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=calls + MORE_CALLS,
            runtime_env=replica_environment(num_gpus=0.0),
        )
        process = actor.remote(graders)
        for grader in graders:
            handles.append(Handle(grader.name, process, start_timeout_s))
    deployments.BESIDE.update({handle.name: handle for handle in handles})
    return handles


def wait_until_up(handles: Sequence[Handle], started: float, timeout_s: float) -> None:
    """Wait until the processes of these handles have loaded their graders.

    Args:
        started: when they were started, as `time.monotonic()` tells it.
        timeout_s: seconds from then on.

    Raises:
        InputError: a grader can't be made.
        DeadlineExceeded: not all are up in time; names the missing graders.
    """
    missing = []
    for name, answer in [(handle.name, handle.actor.__ray_ready__.remote()) for handle in handles]:
        try:
            ray.get(answer, timeout=max(0.0, started + timeout_s - time.monotonic()))
        except TimeoutError:
            missing.append(name)
        except RayError as error:
            raise InputError(deployments.last_line(str(error))) from None
    if missing:
        raise DeadlineExceeded(
            f"waited {timeout_s:g} s (reward_servers.start_timeout_s) for graders beside the driver to "
            f"start; not up: {', '.join(missing)}"
        )


def handles() -> list[Handle]:
    """Return the handles of all graders beside this driver."""
    return list(deployments.BESIDE.values())


def end_all() -> None:
    """End all processes beside this driver."""
    end(list(deployments.BESIDE))


def end(names: Sequence[str]) -> None:
    """End the processes of these graders; ignore the names of others."""
    ending = [deployments.BESIDE.pop(name) for name in names if name in deployments.BESIDE]
    if ray.is_initialized():
        for actor in {handle.actor for handle in ending}:
            ray.kill(actor)
