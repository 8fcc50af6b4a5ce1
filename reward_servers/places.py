"""Places of graders: processes beside the driver, and Ray Serve where replicas, GPUs or limits need it.

reward=length                        beside the driver, in the one process of all plain graders
reward=my_rewards.py:brevity         beside the driver, in a process of its own
reward_servers.LABEL.replicas=2      replicas of Ray Serve; the same for num_cpus, num_gpus and a sandbox
reward=bleurt                        a replica of Ray Serve, because it loads a model
RAY_ADDRESS=…                        replicas of Ray Serve, which the cluster places and scales
"""

import os
from dataclasses import dataclass

from contracts.settings import Settings
from reward_servers.requirements import requires
from reward_servers.settings import Part, ServerSettings
from reward_servers.user_rewards.own import find_grader, settled


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one grader, and why it is there.

    Example: `Place(is_served=False, is_shared=True, why="a plain function")`
    """

    is_served: bool  # by Ray Serve
    is_shared: bool  # in the one process of all plain graders
    why: str


def place_of(kind: str, part: Part, server: ServerSettings) -> Place:
    """Return the place of a grader of a run.

    Args:
        kind: "reward" or "metric".
    """
    grader = find_grader(kind, settled(part).name)
    if (why := _why_served(grader, server)) is not None:
        return Place(is_served=True, is_shared=False, why=why)
    if (why := _why_alone(grader)) is not None:
        return Place(is_served=False, is_shared=False, why=why)
    return Place(is_served=False, is_shared=True, why="a plain function")


def _why_served(grader: type, server: ServerSettings) -> str | None:
    if "RAY_ADDRESS" in os.environ:
        return "the cluster places and scales it"
    if hasattr(grader, "load"):
        return "it loads a model or files"
    settings = {
        "replicas": server.replicas is not None,
        "max_replicas": server.max_replicas > 1,
        "num_cpus": server.num_cpus > 0,
        "num_gpus": server.num_gpus > 0,
        "sandbox": server.sandbox is not None,
    }
    return next((f"{name} is set" for name, is_set in settings.items() if is_set), None)


def _why_alone(grader: type) -> str | None:
    if not issubclass(grader, Settings):
        return "your code"
    if "limits" in grader.model_fields:
        return "it runs programs"
    return "it starts Java" if "java" in requires(grader) else None
