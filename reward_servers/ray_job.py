"""A job of Ray's in whose workers nothing in the working folder takes the place of an installed module."""

from typing import Any

from ray.job_config import JobConfig

from contracts import working_folder

SEARCH_LAST = f"{working_folder.__name__}.{working_folder.search_last.__name__}"


class _Job(JobConfig):
    """Ray's own puts the working folder first on the path of every worker."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # then Ray takes it for somebody else's care


def own_job() -> dict[str, Any]:
    """Options of `ray.init`: its workers look for the user's modules in the working folder, last of all."""
    environment = {"worker_process_setup_hook": SEARCH_LAST, "env_vars": working_folder.variable()}
    return {"job_config": _Job(), "runtime_env": environment}
