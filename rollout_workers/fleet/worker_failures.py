"""Explain errors of workers' processes: whether a process died, and why no worker can start."""

import ray

from contracts.errors import DeadlineExceeded, InputError, WorkerError
from rollout_workers.fleet.places import MOST_DEATHS_AT_START


def is_death(error: Exception) -> bool:
    """Return whether the actor's process or node is gone without raising an exception."""
    if isinstance(error, ray.exceptions.RayActorError):
        return not error.actor_init_failed
    return isinstance(error, ray.exceptions.NodeDiedError | ray.exceptions.OutOfMemoryError)


def reason_of(error: Exception) -> str:
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"failed: {str(error.cause).strip().splitlines()[-1]}"
    return f"died ({type(error).__name__})"


def reason_of_start(error: Exception) -> str:
    """Return why a worker did not start; it may also have taken too long."""
    return str(error) if isinstance(error, DeadlineExceeded) else reason_of(error)


def never_up(name: str, error: Exception) -> InputError | WorkerError:
    """Return the error to raise if no worker can start."""
    if not is_death(error):
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        kind = InputError if isinstance(cause, InputError) else WorkerError
        return kind(f"{name}: {cause}")
    return WorkerError(
        f"{name} {reason_of(error)} at its start, like {MOST_DEATHS_AT_START - 1} before it. The "
        "machine may lack memory: whetstone plan estimates what a worker takes. Ray says: "
        f"{' '.join(str(error).split())[:300]}"
    )
