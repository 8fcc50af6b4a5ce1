"""The place of a run's grader: a process beside the driver, or Ray Serve where a replica gains from it.

reward=length, reward=my_rewards.py:brevity     a process beside the driver
reward_servers.LABEL.replicas=2                 Ray Serve; the same for num_cpus, num_gpus and a sandbox
reward=bleurt                                   Ray Serve, because it loads a model
RAY_ADDRESS=…                                   Ray Serve for every grader: the cluster places and scales it
"""

import os

from contracts.settings import Settings
from reward_servers.settings import Part, ServerSettings
from reward_servers.user_rewards.own import find_grader, settled


def why_served(kind: str, part: Part, server: ServerSettings) -> str | None:
    """Return why Ray Serve serves a grader; None if it runs beside the driver.

    Args:
        kind: "reward" or "metric".
    """
    if "RAY_ADDRESS" in os.environ:
        return "the cluster places and scales it"
    grader = find_grader(kind, settled(part).name)
    if issubclass(grader, Settings) and hasattr(grader, "load"):
        return "it loads a model or files"
    settings = {
        "replicas": server.replicas is not None,
        "max_replicas": server.max_replicas > 1,
        "num_cpus": server.num_cpus > 0,
        "num_gpus": server.num_gpus > 0,
        "sandbox": server.sandbox is not None,
    }
    return next((f"{name} is set" for name, is_set in settings.items() if is_set), None)
