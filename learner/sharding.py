"""Spread parameters, gradients and the optimiser's moments over ranks, row by row (FSDP2).

    between uses     each rank has its rows of every tensor, as a DTensor, and steps them alone
    forward          a block's rows are gathered when it runs, and dropped after it
    backward         the rows are gathered again; gradients are summed, and each rank keeps its rows
    the rest         (embeddings, last norm, heads) is the root's group: it is gathered when the root is
                     called, and dropped after the backward pass

A rank holds 1/N of all weights, gradients and moments, besides one block's and the root's weights.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from contracts.errors import InputError


class Root(nn.Module):
    """Outermost module for FSDP2; a call gathers the parameters outside of blocks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> None:
        return None


def sharded(module: nn.Module, size: int, device: torch.device, *, in_bfloat16: bool) -> Any:
    """Spread a module's parameters over `size` ranks, in place; this rank's rows lie on `device`.

    Returns:
        The module's root: a `Root` that is an `FSDPModule`.

    Args:
        in_bfloat16: gather the blocks' weights in bfloat16. Half as much is sent, and matrix products are
            autocast's anyway. Gradients are summed in float32.

    Raises:
        InputError: the module has no list of layers.
    """
    mesh = DeviceMesh(device.type, list(range(size)))
    layers = list(_layers(module))
    if not layers:
        raise InputError(
            f"learner.num_processes={size}: {type(module).__name__} has no list of layers that could be "
            "spread over processes; expected learner.num_processes=1"
        )
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy if in_bfloat16 else MixedPrecisionPolicy())
    root = Root(module)
    fully_shard(root, mesh=mesh)
    for each in root.modules():
        if isinstance(each, FSDPModule):
            each.set_gradient_divide_factor(1.0)  # sum gradients: each rank's loss is already a share
            each.set_force_sum_reduction_for_comms(True)
    return root


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of every list of layers, but not of lists within a layer, such as experts."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def whole(tensor: Tensor) -> Tensor:
    """Return all rows of a tensor; if they are sharded over ranks, all ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a view of this rank's rows, and the index of the first of them.

    Example: of 37 rows, the second of two ranks has 18, from row 19 on.
    """
    if not isinstance(tensor, DTensor):
        return tensor, 0
    rows = tensor.shape[0]
    share = -(-rows // tensor.device_mesh.size())
    return tensor.to_local(), min(rows, share * tensor.device_mesh.get_local_rank())


def spread_like(rows: Tensor, like: Tensor) -> Tensor:
    """Return this rank's rows as its part of a tensor that is sharded as `like` is."""
    if not isinstance(like, DTensor):
        return rows
    spread: Any = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return spread  # type: ignore[no-any-return]
