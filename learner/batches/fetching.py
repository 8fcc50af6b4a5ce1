"""Fetch many numbers from a GPU at once, because the CPU waits for each single number."""

from collections.abc import Mapping

import torch
from torch import Tensor


def fetched(scalars: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Return the scalars as numbers, by name. An algorithm's own metrics may be plain numbers.

    >>> fetched({"loss": torch.tensor(0.5), "steps": 3})
    {'loss': 0.5, 'steps': 3.0}
    """
    tensors = [scalar for scalar in scalars.values() if isinstance(scalar, Tensor)]
    # Gather the numbers on a GPU, because reading one from there makes the CPU wait.
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))
    numbers = [
        torch.as_tensor(scalar, dtype=torch.float64, device=device).detach().reshape(())
        for scalar in scalars.values()
    ]
    return dict(zip(scalars, torch.stack(numbers).tolist(), strict=True)) if numbers else {}
