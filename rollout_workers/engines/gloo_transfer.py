"""Receive weights over gloo: vLLM's weight-transfer engine between CPUs, and the double of its NCCL engine.

It differs from NCCL's in two ways. All tensors arrive before the first is loaded, so a broadcast that breaks
off leaves the old weights whole. And the way to load them is given from outside.

Import this module only where vLLM is in use.
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
from contracts.weights import WeightGroup

Load = Callable[[Mapping[str, Tensor]], None]


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Arguments with which an engine's processes join a group; each adds its own rank to `rank_offset`."""

    address: str
    rank_offset: int
    world_size: int
    patience_s: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """The tensors of one broadcast, in the order in which they come."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine):  # type: ignore[type-arg, misc, unused-ignore]
    """Engine of one process of vLLM. Its `load` replaces the model's weights."""

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
        """Receive without waiting for an accelerator, which vLLM's own method does."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        described = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype, shape in described:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            gloo_group.broadcast(self._joined, tensor)
            self._received[name] = tensor

    def finish_weight_update(self) -> None:
        received, self._received = self._received, {}
        if received:  # else the broadcast broke off
            assert self.load is not None
            self.load(received)

    def shutdown(self) -> None:
        """Leave the group, and drop what has come of a broadcast."""
        self._joined, self._received = None, {}
