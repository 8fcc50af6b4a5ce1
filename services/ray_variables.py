"""Ray's own variables, for which there are no arguments. Ray reads some of them once, when it is imported."""

import os
import sys

# Of a local Ray. Its many ports are for this machine alone. An address given to `ray.init` does not do that:
# Ray replaces localhost by the machine's own. The first of these, made for other systems' firewalls, does.
OF_ONES_OWN = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # How long one question for the new node takes: `services.ray_cluster` asks again, unless it has ended.
    "RAY_raylet_start_wait_time_s": "2",
    # Threads, not Ray's processor counts, share a single machine's cores: actors ask for none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A game each has a process: more than Ray expects of two cores, which it would warn of.
    "RAY_worker_maximum_startup_concurrency": "32",
}
# How long Ray waits for its own processes, which import much. A slow disk with two busy cores needs more than
# the half minute or minute that it allows; where a process ends, nobody waits so long.
PATIENCE_S = 180
PATIENT = {
    "RAY_agent_register_timeout_ms": str(1000 * PATIENCE_S),
    "RAY_worker_register_timeout_seconds": str(PATIENCE_S),
}


def prepare_ray() -> None:
    """Set what the user has not set. To be called before Ray is imported."""
    wanted = dict(PATIENT)
    if "RAY_ADDRESS" not in os.environ:
        wanted |= OF_ONES_OWN
    if not sys.stdout.isatty():
        wanted["RAY_COLOR_PREFIX"] = "0"  # no colours in a file
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
