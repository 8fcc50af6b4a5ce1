"""Send a learner's weights to its group of workers; each transport has a class.

    gloo    raw broadcasts between CPUs
    nccl    vLLM's packed broadcasts between GPUs, over its own communicator
    ipc     one buffer on a GPU, which workers read by its handle until it is released

`nccl` follows vLLM's source. The workers' side is `rollout_workers/weights/weight_transfer.py`.
"""

import base64
import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from contracts.network import gloo_group
from contracts.network.flat_buffer import Layout
from contracts.network.loopback import NCCL, joins_nodes, stay_on_loopback
from contracts.weights import WeightGroup

Named = Iterator[tuple[str, Tensor]]
Handles = dict[str, Any]


class Link(Protocol):
    """Connection of one learner process to the workers."""

    def send(self, tensors: Named, laid: Layout) -> Handles:
        """Send tensors; return the handles that workers need to receive them.

        Args:
            laid: the tensors' names, types and shapes, and their places in one buffer.

        Raises:
            RuntimeError: a member is gone, or the wait for it took too long.
        """
        ...

    def release(self) -> None:
        """Free memory that workers no longer read."""
        ...

    def leave(self) -> None:
        """Leave the group, so that waiting members notice; no other call may follow."""
        ...


class GlooLink:
    """Connection over gloo. Tensors on a GPU go through the host."""

    def __init__(self, group: WeightGroup) -> None:
        self._joined = gloo_group.join(group, rank=0)

    def send(self, tensors: Named, laid: Layout) -> Handles:
        for _, tensor in tensors:
            gloo_group.broadcast(self._joined, tensor.cpu())
        return {}

    def release(self) -> None:
        return None

    def leave(self) -> None:
        self._joined = None  # closes its connections


class NcclLink:
    """Connection over NCCL. Members meet by the id from `new_id`; the network carries no pickles."""

    def __init__(self, group: WeightGroup) -> None:
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        with _on_own_stream():
            self._joined = uid_init_process_group(
                base64.b64decode(group.address), 0, group.size, torch.accelerator.current_device_index()
            )

    @staticmethod
    def new_id() -> str:
        """Return the id of a new group. NCCL then listens for its members, by default on loopback."""
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

        if not joins_nodes():
            stay_on_loopback(NCCL)
        return base64.b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()

    def send(self, tensors: Named, laid: Layout) -> Handles:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        with _on_own_stream():
            packed_nccl_broadcast_producer(tensors, self._joined, src=0, post_iter_func=_tensor_of)
        return {}

    def release(self) -> None:
        torch.cuda.empty_cache()  # no other code uses the blocks of the streams on which vLLM packs

    def leave(self) -> None:
        self._joined.destroy()  # vLLM's communicator does not end itself
        self.release()


class IpcLink:
    """Connection by memory of one GPU: workers get a buffer's handle by the GPU's UUID.

    The buffer holds all tensors, from a send to its release. Opening one handle for each tensor would take as
    long as the copies.
    """

    def __init__(self, group: WeightGroup) -> None:
        self.staged: dict[str, Tensor] = {}  # filled views of the buffer

    def send(self, tensors: Named, laid: Layout) -> Handles:
        flat = _new_buffer(laid.num_bytes)
        views = laid.views(flat)
        for name, tensor in tensors:
            views[name].copy_(tensor)
            self.staged[name] = views[name]
        return {"ipc_handles": [_exported(flat)]}

    def release(self) -> None:
        self.staged = {}
        torch.cuda.empty_cache()  # the workers on this GPU wake their caches next
        torch.cuda.ipc_collect()

    def leave(self) -> None:
        self.release()


def _new_buffer(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def _exported(flat: Tensor) -> Handles:
    """Return the handle of a fully written buffer, by its GPU's UUID."""
    from torch.multiprocessing.reductions import reduce_tensor

    torch.cuda.current_stream().synchronize()
    gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return {gpu: reduce_tensor(flat)[1]}


LINKS: dict[str, type[GlooLink] | type[NcclLink] | type[IpcLink]] = {
    "gloo": GlooLink,
    "nccl": NcclLink,
    "ipc": IpcLink,
}


@contextlib.contextmanager
def _on_own_stream() -> Iterator[None]:
    """Let vLLM's streams begin when this thread's has ended its work, and keep this thread on its stream.

    vLLM packs on streams that wait for no other stream, so they would read weights too early. Its
    `current_stream` also moves an unknown thread to a new stream, for good. That thread's later calls would
    then not wait for other threads' calls.
    """
    stream = torch.cuda.current_stream()
    stream.synchronize()
    with torch.cuda.stream(stream):  # tells vLLM the stream, and sets it again at the end
        yield


def _tensor_of(named: tuple[str, Tensor]) -> Tensor:
    return named[1]
