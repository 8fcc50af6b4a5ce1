"""Graders beside the driver: their processes, which Ray starts again, and handles of the shape of Serve's.

driver ── handle.score.remote(samples) ──▶ RewardReplica     dead: Ray starts it again, the call is repeated
   └───── check_health() ────────────────▶                   hanging: `actor_watch` kills it first
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

from contracts.errors import DeadlineExceeded, InputError, RewardError
from reward_servers.serving.deployments import BESIDE, deployment_name, last_line
from reward_servers.serving.ray_job import replica_environment
from reward_servers.serving.replicas import MetricReplica, RewardReplica
from reward_servers.settings import Part, ServerSettings

MORE_CALLS = 8  # questions about health and answers, beside the scores under way
POLL_S = 0.2
HANGS_AFTER_S = 20.0  # or `timeout_s`, if it is longer; a library may keep Python's lock for a while
LEAST_S = 5.0  # a last look at a process that had all the time that others took to start


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
    """Handle of a grader beside the driver."""

    name: str  # as Serve would name its deployment
    label: str
    actor: Any
    hangs_after_s: float  # without a sign of life
    start_timeout_s: float
    started: float = field(default_factory=time.monotonic)

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_"):
            raise AttributeError(method)
        return Method(lambda *arguments: Response(getattr(self.actor, method).remote(*arguments)))

    async def until_up(self) -> None:
        """Wait for a lost process's successor: Ray refuses calls meanwhile, and each would count as a try.

        Raises:
            RewardError: the successor can't load the grader; says why.
        """
        deadline = time.monotonic() + self.start_timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(_ready(self.actor), left_s)
                return
            except ActorDiedError as error:  # Ray gives up where a constructor raises
                raise RewardError(
                    f"{self.name}: its process died, and another one did not start: {last_line(str(error))}"
                ) from None
            except (RayError, TimeoutError):
                await asyncio.sleep(POLL_S)

    def wait_until_up(self) -> None:
        """Wait until the grader is loaded, even if its process dies meanwhile and Ray starts another one.

        Raises:
            InputError: it can't be made.
            DeadlineExceeded: it is not up `start_timeout_s` after its start.
        """
        least = time.monotonic() + LEAST_S
        while (left_s := max(self.started + self.start_timeout_s, least) - time.monotonic()) > 0:
            try:
                ray.get(self.actor.__ray_ready__.remote(), timeout=left_s)
                return
            except GetTimeoutError:
                break
            except ActorDiedError as error:
                raise InputError(f"{self.name} did not start: {last_line(str(error))}") from None
            except RayError:  # it died, and Ray starts it again
                time.sleep(POLL_S)
        raise DeadlineExceeded(
            f"{self.name} did not start within {self.start_timeout_s:g} s "
            "(reward_servers.start_timeout_s). See Ray's log of its process"
        )


async def _ready(actor: Any) -> None:
    await actor.__ray_ready__.remote()


def start(kind: str, part: Part, settings: ServerSettings, start_timeout_s: float) -> Handle:
    """Start a grader's process; `wait_until_up` waits for it.

    Args:
        kind: "reward" or "metric".
    """
    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": settings.max_ongoing_requests + MORE_CALLS,
        "runtime_env": replica_environment(num_gpus=0.0),
    }
    if kind == "reward":
        actor = ray.remote(RewardReplica).options(**options).remote(part, settings, is_alone=True)
    else:
        actor = ray.remote(MetricReplica).options(**options).remote(part)
    name = deployment_name(kind, part.label)
    handle = Handle(name, part.label, actor, max(HANGS_AFTER_S, settings.timeout_s), start_timeout_s)
    BESIDE[name] = handle
    return handle


def handles() -> list[Handle]:
    """Return the handles of all graders beside this driver."""
    return list(BESIDE.values())


def end_all() -> None:
    """End all processes beside this driver."""
    end(list(BESIDE))


def end(names: Sequence[str]) -> None:
    """End the processes of these graders; ignore names that Serve has."""
    for name in names:
        handle = BESIDE.pop(name, None)
        if handle is not None and ray.is_initialized():
            ray.kill(handle.actor)
