"""Spread parameters, gradients and the optimiser's moments over ranks, row by row (FSDP2).

    between uses     each rank has its rows of every tensor, as a DTensor, and steps them alone
    forward          a block's rows are gathered while the block before it computes, and dropped after it
    backward         the rows are gathered again; gradients are summed, and each rank keeps its rows
    the rest         (embeddings, last norm, heads) is the root's group: it is gathered when the root is
                     called, and dropped after the backward pass

A list of blocks runs inside a call of the root. Outside of it, each block would count as a root, and would
begin to gather only when all work before it has ended.

A rank holds 1/N of all weights, gradients and moments, besides one block's and the root's weights.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from contracts.errors import InputError

# A root may return a view, because nothing writes into it. A copy of all hidden states would cost memory.
warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)


class Root(nn.Module):
    """Outermost module for FSDP2; a call gathers the parameters outside of blocks, then runs a function.

    Blocks with weights gathered in bfloat16 always run under autocast, because the embeddings are float32.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, in_bfloat16: bool) -> None:
        super().__init__()
        self.module = module
        self._device, self._in_bfloat16 = device, in_bfloat16

    def forward(self, run: Callable[..., Any] | None = None, *inputs: Any, **options: Any) -> Any:
        if run is None:
            return None
        if not self._in_bfloat16:
            return run(*inputs, **options)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            return run(*inputs, **options)


def sharded(
    module: nn.Module, size: int, device: torch.device, *, in_bfloat16: bool, offload: bool = False
) -> Any:
    """Spread a module's parameters over `size` ranks, in place; this rank's rows are on `device`.

    Returns:
        The module's root: a `Root` that is an `FSDPModule`.

    Args:
        in_bfloat16: gather the blocks' weights in bfloat16. This sends half as much, and autocast rounds
            matrix products anyway. Gradients are summed in float32.
        offload: keep this rank's rows, their gradients and moments in the host's memory. A block's rows are
            copied to `device` when it runs.

    Raises:
        InputError: the module has no list of layers.
    """
    mesh = DeviceMesh(device.type, list(range(size)))
    stacks = list(_stacks(module))
    if not stacks:
        raise InputError(
            f"learner.num_processes={size}, learner.offload={str(offload).lower()}: {type(module).__name__} "
            "has no list of layers that could be spread over processes or offloaded; expected "
            "learner.num_processes=1 and learner.offload=false"
        )
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    # Pinned memory is copied while the GPU computes.
    places = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
    for stack in stacks:
        for layer in _layers(stack):
            precision = policy if in_bfloat16 else MixedPrecisionPolicy()
            fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=places)
    root = Root(module, device, in_bfloat16=in_bfloat16)
    fully_shard(root, mesh=mesh, offload_policy=places)
    _make_rows(root, torch.device("cpu") if offload else device)
    for stack in stacks:
        setattr(stack, "forward", partial(root, stack.forward))  # noqa: B010
    for part in root.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # sum gradients, because each rank's loss is already a share
            part.set_force_sum_reduction_for_comms(True)
    return root


def _make_rows(root: nn.Module, device: torch.device) -> None:
    """Give memory to this rank's rows of parameters without values; tied parameters stay one."""
    made: dict[int, nn.Parameter] = {}
    for module in root.modules():
        for name, empty in module.named_parameters(recurse=False, remove_duplicate=False):
            if empty.is_meta:
                if id(empty) not in made:
                    rows = torch.empty_like(empty, device=device)
                    made[id(empty)] = nn.Parameter(rows, empty.requires_grad)
                setattr(module, name, made[id(empty)])
    if made:
        root._apply(lambda tensor: tensor)  # FSDP2 adopts the new parameters


def _stacks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that hold and run lists of layers, but not layers with lists, such as experts."""
    if len(_layers(module)):
        yield module
    for child in module.children():
        if not isinstance(child, nn.ModuleList):
            yield from _stacks(child)


def _layers(stack: nn.Module) -> list[nn.Module]:
    lists = [child for child in stack.children() if isinstance(child, nn.ModuleList)]
    return [layer for layers in lists for layer in layers]


def whole(tensor: Tensor) -> Tensor:
    """Return all rows of a tensor; if they are sharded over ranks, all ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def computes_on(tensor: Tensor) -> str:
    """Return the kind of device that computes with a tensor; offloaded rows lie in the host's memory."""
    return tensor.device_mesh.device_type if isinstance(tensor, DTensor) else tensor.device.type


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a view of this rank's rows, and the index of the first row.

    Example: of 37 rows, the second of two ranks has 18, from row 19 on.
    """
    if not isinstance(tensor, DTensor):
        return tensor, 0
    rows = tensor.shape[0]
    share = -(-rows // tensor.device_mesh.size())
    return tensor.to_local(), min(rows, share * tensor.device_mesh.get_local_rank())


def spread_like(rows: Tensor, like: Tensor) -> Tensor:
    """Return this rank's rows as its part of a tensor with the sharding of `like`."""
    if not isinstance(like, DTensor):
        return rows
    spread: Any = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return spread  # type: ignore[no-any-return]
