"""Ray's environment variables, for settings without arguments. Ray reads some only at its import."""

import os
import sys

# For a local Ray, whose many ports are for this machine alone. An address given to `ray.init` does not ensure
# that: Ray replaces localhost by the machine's own address. The first variable, made for other systems'
# firewalls, does.
OF_ONES_OWN = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Seconds of one look-up of the new node; `ray_cluster` repeats it, unless the node has ended.
    "RAY_raylet_start_wait_time_s": "2",
    # Actors ask for no processors: on a single machine, the numbers of threads share out the cores.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Each game has a process: more than Ray expects on two cores, so it would warn.
    "RAY_worker_maximum_startup_concurrency": "32",
    # Each actor gets a process with variables of its own, so none could use one that was started before.
    "RAY_prestart_worker_first_driver": "0",
}
QUIET = {"GRPC_VERBOSITY": "ERROR"}  # else a second start in one process prints notes about forks
# Seconds that Ray waits for its own processes, which import much. A slow disk with two busy cores needs more
# than Ray's half minute or minute. A process that has ended is not waited for.
PATIENCE_S = 180


def patient(seconds: int) -> dict[str, str]:
    """Return the variables that set a raylet's wait for its agent and workers."""
    return {
        "RAY_agent_register_timeout_ms": str(1000 * seconds),
        "RAY_worker_register_timeout_seconds": str(seconds),
    }


PATIENT = patient(PATIENCE_S)


def prepare_ray() -> None:
    """Set the variables that the user has not set. Call this before Ray is imported.

    Remove a blank RAY_ADDRESS: it names no cluster.
    """
    if not os.environ.get("RAY_ADDRESS", "").strip():
        os.environ.pop("RAY_ADDRESS", None)
    wanted = {**PATIENT, **QUIET}
    if "RAY_ADDRESS" not in os.environ:
        wanted |= OF_ONES_OWN
    if not sys.stdout.isatty():
        wanted["RAY_COLOR_PREFIX"] = "0"  # no colours in a file
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
