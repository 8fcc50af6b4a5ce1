"""Deployments of rewards and metrics: their names, their handles, and how many replicas they have now."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ray import serve
from ray.serve.exceptions import RayServeException

from contracts.errors import InputError

# Handles of the graders beside this driver, outside of Serve, by deployment name; `beside.py` fills it.
BESIDE: dict[str, Any] = {}
COUNT_EVERY_S = 2.0  # seconds between counts of the replicas, which `whetstone scale` may change


def deployment_name(kind: str, label: str) -> str:
    """Return the name of both the Serve application and its only deployment.

    Serve puts it into headers of calls, which carry ASCII alone.

    >>> deployment_name("reward", "rouge"), deployment_name("reward", "güte")
    ('reward-rouge', 'reward-xn--gte-hoa')
    """
    return f"{kind}-{label}" if label.isascii() else f"{kind}-xn--{label.encode('punycode').decode()}"


def num_replicas(kind: str, label: str) -> int:
    """Return how many replicas Serve has up; 0 if the part is not deployed there."""
    name = deployment_name(kind, label)
    application = serve.status().applications.get(name)
    deployment = application and application.deployments.get(name)
    return deployment.replica_states.get("RUNNING", 0) if deployment else 0


def handle_of(kind: str, label: str) -> Any:
    """Return the handle of a reward or metric beside this driver, or Serve's handle.

    Raises:
        InputError: it is not deployed.
    """
    name = deployment_name(kind, label)
    if name in BESIDE:
        return BESIDE[name]
    try:
        return serve.get_deployment_handle(name, app_name=name)
    except (RayServeException, KeyError) as error:
        raise InputError(f"{kind} {label} is not deployed: {error}") from None


def last_line(traceback: str) -> str:
    """Return the traceback's last line, without the module name of our own errors."""
    return traceback.strip().splitlines()[-1].removeprefix("contracts.errors.InputError: ")


class ReplicaCount:
    """Count of a deployment's replicas, made now and then in the background of one event loop.

    Args:
        on_count: awaited in the event loop with each count above 0.
        counted_at: when the replicas were last known, as `time.monotonic()` tells it.
    """

    def __init__(
        self,
        kind: str,
        label: str,
        on_count: Callable[[int], Awaitable[None]],
        counted_at: float = -math.inf,
    ) -> None:
        self._kind, self._label, self._on_count = kind, label, on_count
        self._counted_at = counted_at
        self._counting: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> "asyncio.Task[None] | None":
        """Return the count that has not ended yet; its thread may wait for Serve's controller."""
        return None if self._counting is None or self._counting.done() else self._counting

    def refresh(self) -> None:
        """Count again, unless that was a moment ago or is under way."""
        if self.under_way or time.monotonic() - self._counted_at < COUNT_EVERY_S:
            return
        self._counted_at = time.monotonic()
        self._counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        count = await asyncio.to_thread(num_replicas, self._kind, self._label)
        if count:
            await self._on_count(count)
