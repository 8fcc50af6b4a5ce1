"""Send a learner's weights to its group of workers: one class for each transport.

    gloo    raw broadcasts between CPUs
    nccl    vLLM's packed broadcasts between GPUs, over its own communicator
    ipc     copies on one GPU, which workers read by their handles until they are released

`nccl` and `ipc` follow vLLM's source, and have not run with this code yet. The workers' side is
`rollout_workers/engines/weight_transfer.py`.
"""

import base64
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from contracts.network import gloo_group
from contracts.weights import WeightGroup

Named = Iterator[tuple[str, Tensor]]
Handles = dict[str, Any]


class Link(Protocol):
    """Connection of one learner process to the workers; dropping it leaves the group."""

    def send(self, tensors: Named) -> Handles:
        """Send tensors; return what the workers must be told to receive them.

        Raises:
            RuntimeError: a member is gone, or was waited for too long.
        """
        ...

    def release(self) -> None:
        """Give up memory that workers no longer read."""
        ...


class GlooLink:
    """Connection over gloo. Tensors on a GPU go through the host."""

    def __init__(self, group: WeightGroup) -> None:
        self._joined = gloo_group.join(group, rank=0)

    def send(self, tensors: Named) -> Handles:
        for _, tensor in tensors:
            gloo_group.broadcast(self._joined, tensor.cpu())
        return {}

    def release(self) -> None:
        return None


class NcclLink:
    """Connection over NCCL. Members meet by the id of `new_id`, so nothing pickled crosses the network."""

    def __init__(self, group: WeightGroup) -> None:
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        self._joined = uid_init_process_group(
            base64.b64decode(group.address), 0, group.size, torch.accelerator.current_device_index()
        )

    @staticmethod
    def new_id() -> str:
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

        return base64.b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()

    def send(self, tensors: Named) -> Handles:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(tensors, self._joined, src=0, post_iter_func=_tensor_of)
        torch.cuda.current_stream().synchronize()
        return {}

    def release(self) -> None:
        return None


class IpcLink:
    """Connection by memory of one GPU: workers get the handle of a copy of each tensor, by the GPU's UUID."""

    def __init__(self, group: WeightGroup) -> None:
        self._copies: list[Tensor] = []

    def send(self, tensors: Named) -> Handles:
        from torch.multiprocessing.reductions import reduce_tensor

        gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        handles = []
        for _, tensor in tensors:
            # A copy even of what is contiguous: the allocator's block is read until `release`.
            copy = tensor.clone(memory_format=torch.contiguous_format)
            self._copies.append(copy)
            handles.append({gpu: reduce_tensor(copy)[1]})
        torch.cuda.current_stream().synchronize()
        return {"ipc_handles": handles}

    def release(self) -> None:
        self._copies = []
        torch.cuda.empty_cache()  # the workers on this GPU wake their caches next
        torch.cuda.ipc_collect()


LINKS: dict[str, type[GlooLink] | type[NcclLink] | type[IpcLink]] = {
    "gloo": GlooLink,
    "nccl": NcclLink,
    "ipc": IpcLink,
}


def _tensor_of(named: tuple[str, Tensor]) -> Tensor:
    return named[1]
