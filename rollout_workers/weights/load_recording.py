"""Record where vLLM's loaders copy published tensors: which elements go to which places of which parameter.

Each vLLM architecture names, joins, splits and transposes weights differently. In the end every loader copies
views of the published tensors into views of parameters. So watching the copies reveals all of them.
"""

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True, slots=True)
class Region:
    """A strided region of a tensor's memory.

    Example: the right half of a 2 × 4 matrix is `Region(size=(2, 2), stride=(4, 1), offset=2)`.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def whole(cls, shape: torch.Size) -> "Region":
        """Return the region of a whole contiguous tensor."""
        return cls(tuple(shape), tuple(torch.empty(shape, device="meta").stride()), 0)

    def of(self, tensor: Tensor) -> Tensor:
        """Return the region as a view of a contiguous tensor."""
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy of a loader: a region of a published tensor goes to a region of a parameter."""

    source: str
    read: Region
    written: Region

    @property
    def num_elements(self) -> int:
        return int(torch.Size(self.read.size).numel())


@dataclass(slots=True)
class Target:
    """A parameter in its form before vLLM packs it, and the copies that fill it."""

    layer: nn.Module
    parameter: str
    shape: torch.Size
    dtype: torch.dtype
    copies: list[Copied] = field(default_factory=list)

    @property
    def sources(self) -> set[str]:
        return {copied.source for copied in self.copies}

    @property
    def is_filled(self) -> bool:
        """Return whether the copies fill the whole parameter; copies of one layer don't overlap."""
        return sum(copied.num_elements for copied in self.copies) == self.shape.numel()


class LoadRecording(TorchDispatchMode):
    """Watch the copies from published tensors while the block runs.

    Args:
        model: the model that loads.
        tensors: the published tensors; they may share one buffer, but don't overlap.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._model, self._tensors = model, tensors
        filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
        self._begins = sorted((tensor.data_ptr(), name) for name, tensor in filled.items())
        self._targets: dict[tuple[nn.Module, str], Target] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            written, read = args[:2]
            name = None if read.is_meta else self._name_at(read)
            if name is not None and not written.is_meta:  # vLLM rehearses copies without memory
                self._note(name, read.expand(written.shape), written)
        return func(*args, **(kwargs or {}))

    def _name_at(self, read: Tensor) -> str | None:
        """Return the published tensor whose memory a view shares, or None."""
        at = read.data_ptr()
        index = bisect(self._begins, at, key=itemgetter(0)) - 1
        if index < 0:
            return None
        begin, name = self._begins[index]
        tensor = self._tensors[name]
        lies_there = read.device == tensor.device and at < begin + tensor.numel() * tensor.itemsize
        return name if lies_there else None

    def _note(self, name: str, read: Tensor, written: Tensor) -> None:
        owner = self._owner(written)
        if owner is None:
            return
        layer, parameter, whole = owner
        target = self._targets.setdefault(
            (layer, parameter), Target(layer, parameter, whole.shape, whole.dtype)
        )
        copied = Copied(name, _region(read, self._tensors[name]), _region(written, whole))
        if copied not in target.copies:
            target.copies.append(copied)

    def _owner(self, written: Tensor) -> tuple[nn.Module, str, Tensor] | None:
        memory = written.untyped_storage().data_ptr()
        for layer in self._model.modules():
            for name, parameter in layer.named_parameters(recurse=False):
                if not parameter.is_meta and parameter.untyped_storage().data_ptr() == memory:
                    return layer, name, parameter
        return None

    @property
    def targets(self) -> list[Target]:
        return list(self._targets.values())

    @property
    def unexplained(self) -> set[str]:
        """Return the published tensors of which not every element was copied exactly once."""
        seen = dict.fromkeys(self._tensors, 0)
        for target in self._targets.values():
            for copied in target.copies:
                seen[copied.source] += copied.num_elements
        return {name for name, tensor in self._tensors.items() if seen[name] != tensor.numel()}


def _region(view: Tensor, whole: Tensor) -> Region:
    offset = int(view.storage_offset()) - int(whole.storage_offset())
    return Region(tuple(view.shape), tuple(view.stride()), offset)
