"""A learner that computes in float64, so that a test can tell a mistake from rounding."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from learner.learner import Learner


@contextmanager
def in_float64(learner: Learner) -> Iterator[None]:
    """Compute in float64, also where the learner asks for float32.

    A T5 with small gradients shows why: two layouts of one batch differ by up to 5e-4 in float32, which AdamW
    makes of rounding, and by 4e-12 in float64.
    """
    single = torch.float32
    for model in (learner.pair, learner.reference, learner.mask):
        if model is not None:
            model.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(single)
