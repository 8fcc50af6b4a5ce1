"""Keep a process's groups of torch and NCCL on this machine, unless they meet other machines."""

import os
import socket

JOINS_NODES = "WHETSTONE_JOINS_NODES"  # environment variable, set after a run joined a cluster
GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def joins_nodes() -> bool:
    """Return whether this process belongs to a run that joined a cluster."""
    return bool(os.environ.get(JOINS_NODES))


def stay_on_loopback(*variables: str) -> None:
    """Name the loopback interface to gloo, to NCCL, or by default to both; a user's choice wins."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    for variable in (variables or (GLOO, NCCL)) if names else ():
        os.environ.setdefault(variable, names[0])
