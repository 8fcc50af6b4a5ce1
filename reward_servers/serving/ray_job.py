"""Options of a Ray job whose workers prefer installed modules to those in the working folder."""

from typing import Any

from ray.job_config import JobConfig

from contracts.processes import working_folder

SEARCH_LAST = f"{working_folder.__name__}.{working_folder.search_last.__name__}"


class _Job(JobConfig):
    """A job that keeps the working folder off its workers' paths; Ray would put it first."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # then Ray leaves the path alone


def own_job() -> dict[str, Any]:
    """Return options of `ray.init` whose workers search the working folder last."""
    environment = {"worker_process_setup_hook": SEARCH_LAST, "env_vars": working_folder.variable()}
    return {"job_config": _Job(), "runtime_env": environment}
