"""Lay many tensors one after the other into one buffer of bytes, and view them there.

A learner and its workers compute the same places from a manifest, so one memory handle serves all of a
model's tensors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 256  # alignment in bytes; every type may begin there, and a GPU copies its widest words


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of one tensor in the buffer, from `begin` on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of all tensors by name, and the bytes that the buffer needs."""

    places: Mapping[str, Place]
    num_bytes: int

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return every tensor as a view of the buffer, with shared memory.

        Args:
            buffer: at least `num_bytes` of uint8, contiguous.
        """
        return {
            name: buffer[at.begin : at.begin + at.num_bytes].view(at.dtype).view(at.shape)
            for name, at in self.places.items()
        }


def layout(dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """Lay tensors in the order of `dtypes`, each at the next aligned byte.

    >>> laid = layout({"a": "bfloat16", "b": "float32"}, {"a": (3,), "b": ()})
    >>> laid.places["b"].begin, laid.num_bytes
    (256, 260)
    """
    places, end = dict[str, Place](), 0
    for name, dtype in dtypes.items():
        place = Place(getattr(torch, dtype), tuple(shapes[name]), -(-end // ALIGNED) * ALIGNED)
        places[name], end = place, place.begin + place.num_bytes
    return Layout(places, end)
