"""Meeting of the ranks of one learner: its address and its store. The import needs no torch."""

import socket
from dataclasses import dataclass

TCP = "tcp://"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address at which the ranks of one learner meet, and the number of this rank.

    Example: the second of two ranks that meet in a file: `Rendezvous(1, 2, "file:///tmp/meeting")`.
    `MeetingPoint` gives addresses such as `tcp://127.0.0.1:40123`.
    """

    rank: int
    size: int
    address: str


class MeetingPoint:
    """Store in which ranks find each other while it lives; it listens only on `host`."""

    def __init__(self, host: str, size: int) -> None:
        import torch.distributed as dist

        listening = socket.create_server((host, 0))
        port = listening.getsockname()[1]
        self._size, self.address = size, f"{TCP}{host}:{port}"
        self._store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )

    def for_rank(self, rank: int) -> Rendezvous:
        return Rendezvous(rank, self._size, self.address)
