"""Fetch many numbers from a GPU at once: for each single one the processor waits."""

from collections.abc import Mapping

import torch
from torch import Tensor


def fetched(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the scalars as numbers, by name; they lie on one device.

    >>> fetched({"loss": torch.tensor(0.5), "steps": torch.tensor(3)})
    {'loss': 0.5, 'steps': 3.0}
    """
    if not scalars:
        return {}
    numbers = torch.stack([scalar.detach().double().reshape(()) for scalar in scalars.values()]).tolist()
    return dict(zip(scalars, numbers, strict=True))
