"""Read arrays from the object store as tensors, without a copy."""

import warnings
from typing import Any

import numpy as np
import torch


def as_tensor(array: "np.ndarray[Any, Any]", dtype: str) -> torch.Tensor:
    """Return a tensor of the same shape over the array's own memory; the store's memory must only be read.

    Args:
        dtype: a torch dtype's name; bfloat16 comes as uint16, which NumPy can hold.
    """
    with warnings.catch_warnings():  # "not writable" is intended
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
