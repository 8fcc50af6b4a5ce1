"""Let a learner's processes join and send to groups of workers, as `contracts.clients.Broadcast`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from contracts.weights import WeightGroup
from learner.actors.handle import LearnerHandle
from learner.distributed.rendezvous import MeetingPoint

JOIN, SEND = "a group with the workers", "weights to be sent"


class LearnerBroadcast:
    """The learner's side of broadcasts, with one group at a time.

    Args:
        stall_timeout_s: seconds without progress after which the learner is lost. Members of a gloo group
            give up earlier, so that a hanging worker does not look like a hanging learner. NCCL waits.
        results: waits for calls and returns their results; it raises LearnerLost.
    """

    def __init__(
        self,
        processes: Sequence[LearnerHandle],
        transport: str,
        stall_timeout_s: float,
        results: Callable[[Sequence[Any], str], list[Any]],
    ) -> None:
        self._processes, self._transport, self._results = processes, transport, results
        self._patience_s = stall_timeout_s / 2
        self._point: MeetingPoint | None = None
        self._calls: list[Any] = []
        self.group: WeightGroup | None = None

    def open(self, num_receivers: int) -> WeightGroup:
        self.group, size = None, num_receivers + 1
        if self._transport == "gloo":  # workers on other nodes need the node's address
            self._point = MeetingPoint(ray.util.get_node_ip_address(), size)
            address = self._point.address
        else:
            (address,) = self._results([self._processes[0].new_address(self._transport)], JOIN)
        self.group = WeightGroup(self._transport, address, size, self._patience_s)
        self._calls = [process.join_group(self.group) for process in self._processes]
        return self.group

    def has_joined(self) -> str | None:
        return self._checked(self._results(self._calls, JOIN))

    def send(self) -> Mapping[str, Any]:
        self._calls = [process.send_weights() for process in self._processes]
        if self._transport != "ipc":
            return {}
        return merged([handles for handles, _ in self._results(self._calls, SEND)])

    def has_sent(self) -> str | None:
        return self._checked([broken for _, broken in self._results(self._calls, SEND)])

    def keep(self) -> None:
        self.group = None
        self._results([process.keep_weights() for process in self._processes], SEND)

    def release(self) -> None:
        self._results([process.release_weights() for process in self._processes], SEND)

    def _checked(self, reasons: Sequence[str | None]) -> str | None:
        broken = next((reason for reason in reasons if reason is not None), None)
        if broken is not None:
            self.group = None
        return broken


def merged(handles: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the handles of all processes as one: each tensor's handles on every GPU.

    >>> merged([{"ipc_handles": [{"GPU-a": (1,)}]}, {"ipc_handles": [{"GPU-b": (2,)}]}])
    {'ipc_handles': [{'GPU-a': (1,), 'GPU-b': (2,)}]}
    >>> merged([{}, {}])
    {}
    """
    lists = [handle["ipc_handles"] for handle in handles if handle]
    if not lists:
        return {}
    same_tensor = zip(*lists, strict=True)
    return {"ipc_handles": [{gpu: at for one in same for gpu, at in one.items()} for same in same_tensor]}
