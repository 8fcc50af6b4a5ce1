"""Groups of processes that meet at a store and broadcast tensors over gloo, apart from torch's own groups.

A process may join several, and leave each. Torch's default group belongs to the learner's ranks, or to the
ranks of an engine.
"""

import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor, uint8

from contracts.weights import WeightGroup

TCP = "tcp://"


def join(group: WeightGroup, rank: int) -> Any:
    """Wait for the group's other members; return the group. To leave it, drop it.

    Raises:
        RuntimeError: not all came in time.
    """
    host, port = host_and_port(group.address)
    patience = timedelta(seconds=group.patience_s)
    store = dist.TCPStore(host, port, is_master=False, timeout=patience)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=own_address(host, port))]
    options._timeout = patience
    return gloo(store, rank, group.size, options)


def broadcast(joined: Any, tensor: Tensor) -> None:
    """Send the bytes of rank 0's contiguous tensor on a CPU into those of all other members.

    Raises:
        RuntimeError: a member is gone, or did not answer in time.
    """
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    joined.broadcast([tensor.reshape(-1).view(uint8)], options).wait()


def host_and_port(address: str) -> tuple[str, int]:
    """
    >>> host_and_port("tcp://127.0.0.1:40123")
    ('127.0.0.1', 40123)
    """
    host, _, port = address.removeprefix(TCP).rpartition(":")
    return host, int(port)


def own_address(host: str, port: int) -> str:
    """Return this machine's address on the network that leads to `host`, loopback for its own addresses.

    Nothing is sent, because a datagram socket only looks up the route.

    >>> own_address("127.0.0.1", 9)
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
