"""Read the resources of the connected Ray cluster: processors, GPUs of each node, and their memory."""

from dataclasses import replace

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.training.preflight.deployment import Machine
from services.training.preflight.machine import least_gpu_bytes

ANSWERS_WITHIN_S = 120.0  # enough for a node to start a process without PyTorch


def ray_machine() -> Machine:
    """Return the resources of the cluster to which this process is connected."""
    resources = ray.cluster_resources()
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [node for node in there if node.get("GPU")]
    cores = [cores for node in nodes or there if (cores := node.get("CPU"))]  # a head node may have no cores
    return Machine(
        resources.get("CPU", 0.0),
        resources.get("GPU", 0.0),
        nodes=tuple(int(node["GPU"]) for node in nodes),
        host_bytes=min((node.get("memory", 0.0) for node in nodes), default=None),
        node_cores=min(cores, default=None),
    )


def gpu_machine() -> Machine:
    """Return the cluster's resources, with the memory of its smallest GPU, as its nodes report it."""
    machine = ray_machine()
    return replace(machine, gpu_bytes=_least_gpu_bytes()) if machine.num_gpus else machine


def _least_gpu_bytes() -> float | None:
    """Return the memory of the cluster's smallest GPU; None if a node does not know it."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    ask = ray.remote(num_cpus=0)(least_gpu_bytes)
    answers = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    ]
    try:
        sizes = ray.get(answers, timeout=ANSWERS_WITHIN_S)
    except ray.exceptions.RayError:
        return None
    return None if None in sizes else min(sizes)
