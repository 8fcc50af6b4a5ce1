"""Receive weights over gloo, and from a buffer on a shared GPU: engines of vLLM's weight transfer.

Both differ from vLLM's engines in two ways. All tensors arrive before the first is loaded, so a push that
breaks off leaves the old weights whole. And the caller sets the function that loads them.

    gloo    broadcasts between CPUs; also the double of vLLM's NCCL engine
    ipc     the learner's buffer on this engine's GPU: one handle is opened, and all tensors are views of its
            memory, where vLLM's own engine opens one for each tensor and makes every layer anew

Import this module only if vLLM is in use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from contracts.network import gloo_group
from contracts.network.flat_buffer import layout
from contracts.weights import WeightGroup

Load = Callable[[Mapping[str, Tensor]], None]
DEVICE_INDEX = 6  # place of the GPU's number among the arguments that rebuild a shared tensor


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Arguments with which an engine's processes join a group; each adds its rank to `rank_offset`."""

    address: str
    rank_offset: int
    world_size: int
    patience_s: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """The tensors of one broadcast, in their order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine):  # type: ignore[type-arg, misc, unused-ignore]
    """Engine of one vLLM process. Its `load` replaces the model's weights."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.load: Load | None = None
        self._joined: Any = None
        self._received: dict[str, Tensor] = {}

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        group = WeightGroup("gloo", init_info.address, init_info.world_size, init_info.patience_s)
        self._joined = gloo_group.join(group, init_info.rank_offset + self.parallel_config.rank)

    def start_weight_update(self) -> None:
        self._received = {}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive without waiting for an accelerator, which vLLM's method does."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        described = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype, shape in described:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            gloo_group.broadcast(self._joined, tensor)
            self._received[name] = tensor

    def finish_weight_update(self) -> None:
        received, self._received = self._received, {}
        if received:  # otherwise the broadcast broke off
            assert self.load is not None
            self.load(received)

    def shutdown(self) -> None:
        """Leave the group, and drop the received part of a broadcast."""
        self._joined, self._received = None, {}


@dataclass
class SharedInitInfo(WeightTransferInitInfo):
    """No arguments, because any process on the GPU can open a handle."""


@dataclass
class SharedUpdateInfo(WeightTransferUpdateInfo):
    """The tensors in the buffer, in order, and its handle by the UUID of each GPU that has one."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    ipc_handles: list[dict[str, Any]]


class SharedWeightTransferEngine(WeightTransferEngine):  # type: ignore[type-arg, misc, unused-ignore]
    """Engine of one vLLM process. Its `load` replaces the model's weights."""

    init_info_cls = SharedInitInfo
    update_info_cls = SharedUpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.load: Load | None = None
        self._received: dict[str, Tensor] = {}

    def init_transfer_engine(self, init_info: SharedInitInfo) -> None:
        """Do nothing, because there is no group."""

    def start_weight_update(self) -> None:
        self._received = {}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: SharedUpdateInfo) -> None:
        shapes = {n: tuple(shape) for n, shape in zip(update_info.names, update_info.shapes, strict=True)}
        laid = layout(dict(zip(update_info.names, update_info.dtype_names, strict=True)), shapes)
        self._received = laid.views(opened(update_info.ipc_handles[0], self.device))

    def finish_weight_update(self) -> None:
        """Load, and give the buffer back, because the learner may free it when all copies have ended."""
        received, self._received = self._received, {}
        if not received:  # the handle could not be opened
            return
        assert self.load is not None
        self.load(received)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def shutdown(self) -> None:
        """Forget the received part of a push."""
        self._received = {}


def opened(handles: Mapping[str, Any], device: torch.device) -> Tensor:
    """Return the learner's buffer on this device.

    Raises:
        ValueError: the learner has no buffer on this GPU.
    """
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    gpu = str(torch.cuda.get_device_properties(device).uuid)
    if gpu not in handles:
        raise ValueError(f"the learner's weights are on {', '.join(handles)}, but this worker is on {gpu}")
    arguments = list(handles[gpu])
    arguments[DEVICE_INDEX] = device.index or 0  # each process counts only its visible GPUs
    shared: Tensor = rebuild_cuda_tensor(*arguments)
    return shared
