"""Ask the connected Ray cluster what it has: processors, GPUs of each node, and their memory."""

from dataclasses import replace

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.preflight.deployment import Machine
from services.preflight.machine import least_gpu_bytes

ANSWERS_WITHIN_S = 120.0  # a node starts a process that imports nothing of PyTorch


def ray_machine() -> Machine:
    """Return what the cluster, to which this process is connected, has."""
    resources = ray.cluster_resources()
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [node for node in there if node.get("GPU")]
    cores = [cores for node in nodes or there if (cores := node.get("CPU"))]  # a head may compute nothing
    return Machine(
        resources.get("CPU", 0.0),
        resources.get("GPU", 0.0),
        nodes=tuple(int(node["GPU"]) for node in nodes),
        host_bytes=min((node.get("memory", 0.0) for node in nodes), default=None),
        node_cores=min(cores, default=None),
    )


def gpu_machine() -> Machine:
    """Return what the cluster has, with the memory of its smallest GPU, which its nodes are asked for."""
    machine = ray_machine()
    return replace(machine, gpu_bytes=_least_gpu_bytes()) if machine.num_gpus else machine


def _least_gpu_bytes() -> float | None:
    """Return the memory of the cluster's smallest GPU; None where a node can't tell."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    ask = ray.remote(num_cpus=0)(least_gpu_bytes)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    ]
    try:
        found = ray.get(asked, timeout=ANSWERS_WITHIN_S)
    except ray.exceptions.RayError:
        return None
    return None if None in found else min(found)
