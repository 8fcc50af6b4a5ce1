"""Parameters, gradients and the optimiser's moments spread over ranks, row by row (FSDP2).

    between uses     each rank has its rows of every tensor, as a DTensor, and steps them alone
    forward          a block's rows are gathered when it is run, and dropped behind it
    backward         they are gathered once more; gradients are summed over ranks, and each keeps its rows
    the rest         (embeddings, last norm, heads) makes one more group, the root's: it is gathered when the
                     root is called, and dropped after the backward pass

A rank then holds 1/N of all weights, gradients and moments, besides one block's and the root's weights.
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
    """Calling it gathers what no block has to itself, and tells FSDP2 which module is the outermost."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> None:
        return None


def sharded(module: nn.Module, size: int, device: torch.device, *, in_bfloat16: bool) -> Any:
    """Spread a module's parameters over as many ranks, in place; what is left of it lies on `device`.

    Returns:
        Its root: a `Root` that is an `FSDPModule`.

    Args:
        in_bfloat16: gather the blocks' weights in bfloat16: half as much is sent, and matrix products are
            those that autocast would make anyway. Gradients are summed in float32.

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
    root = fully_shard(Root(module), mesh=mesh)
    for each in root.modules():
        if isinstance(each, FSDPModule):
            each.set_gradient_divide_factor(1.0)  # a sum: each rank's loss is a share already
            each.set_force_sum_reduction_for_comms(True)
    return root


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The members of every list of layers, but for lists within a layer, such as experts."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor; where they are spread, all ranks have to ask for it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """This rank's rows, in place, and the number of the first of them.

    Example: of 37 rows the second of two ranks has 18, from row 19 on.
    """
    if not isinstance(tensor, DTensor):
        return tensor, 0
    rows = tensor.shape[0]
    share = -(-rows // tensor.device_mesh.size())
    return tensor.to_local(), min(rows, share * tensor.device_mesh.get_local_rank())


def spread_like(rows: Tensor, like: Tensor) -> Tensor:
    """This rank's rows as a tensor that is spread as `like` is."""
    if not isinstance(like, DTensor):
        return rows
    spread: Any = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return spread  # type: ignore[no-any-return]
