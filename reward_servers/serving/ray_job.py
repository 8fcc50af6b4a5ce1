"""Options of a Ray job: its workers search the working folder last, and find the run's Python objects.

Objects travel as Ray itself sends functions: as bytes in the store of its head service, from which a process
takes what it looks up. So a process that replaces another one finds them, too.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.experimental import internal_kv
from ray.job_config import JobConfig

from contracts import objects
from contracts.processes import timeline, working_folder
from contracts.processes.gpus import hidden_unless

OF_RUN = "WHETSTONE_OBJECTS"  # names a run's part of the store, which several runs may share
_own_part = secrets.token_hex(8)


class _Job(JobConfig):
    """A job that keeps the working folder off its workers' paths; Ray would put it first."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # then Ray leaves the path alone


def own_job() -> dict[str, Any]:
    """Return options of `ray.init` whose workers search the working folder last."""
    environment = {
        "worker_process_setup_hook": f"{__name__}.{prepare_worker.__name__}",
        "env_vars": variables(),
    }
    return {"job_config": _Job(), "runtime_env": environment}


def variables() -> dict[str, str]:
    """Return the variables that tell a process of Ray where the user's modules and objects are."""
    return {**working_folder.variable(), OF_RUN: _part_of_store()}


def replica_environment(num_gpus: float) -> dict[str, Any]:
    """Return the runtime environment of a process of graders, whoever started its cluster."""
    return {"env_vars": {**variables(), **timeline.variable(), **hidden_unless(num_gpus)}}


def prepare_worker() -> None:
    """Prepare a process of Ray; Ray calls this first, and replicas of Serve call it themselves."""
    working_folder.search_last()
    objects.fetch_with(_fetched)


@contextmanager
def objects_published() -> Iterator[None]:
    """Put this process's objects into the store of the connected cluster, for a time."""
    published = objects.packed_here()
    for name, blob in published.items():
        internal_kv._internal_kv_put(name, blob, namespace=_part_of_store())
    try:
        yield
    finally:
        for name in published:
            internal_kv._internal_kv_del(name, namespace=_part_of_store())


def _fetched(name: str) -> bytes | None:
    if not internal_kv._internal_kv_initialized():
        return None
    stored: bytes | None = internal_kv._internal_kv_get(name, namespace=_part_of_store())
    return stored


def _part_of_store() -> str:
    return os.environ.get(OF_RUN, _own_part)
