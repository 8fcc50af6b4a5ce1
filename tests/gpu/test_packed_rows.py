"""Packed rows by FlashAttention: as near to float64 as padded rows in bfloat16 are."""

import copy

import pytest
import torch

from learner.batches.batching import collate
from learner.models.attention import attend_in_float32
from learner.models.policy import CausalPolicy
from tests.learner.test_packed_rows import error, numbers
from tests.learner.test_shared_prompts import model_of
from tests.learner.tiny import games, whole

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_packed_rows_are_as_near_to_float64_as_padded_ones(kind: str) -> None:
    attend_in_float32()
    right = model_of(kind).cuda()
    policy, micro = CausalPolicy(copy.deepcopy(right).float(), 2**20), whole(collate(games(9), "cuda"))
    exact = numbers(CausalPolicy(right, 2**20), micro, False)
    with torch.autocast("cuda", torch.bfloat16):
        packed, padded = (error(numbers(policy, micro, packs), exact) for packs in (True, False))
    assert packed[0] <= 1.5 * padded[0] and packed[1] <= 1.5 * padded[1]
