"""The head's kernels on a GPU agree with PyTorch's own operators there, and so they are used."""

import pytest
import torch

from learner.functional import head_on_gpu
from learner.functional.linear_logprobs import _plain_head

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", head_on_gpu.KINDS, ids=str)
def test_the_kernels_are_used(kind: torch.dtype) -> None:
    assert head_on_gpu.is_usable(torch.device("cuda", 0), kind, _plain_head)
