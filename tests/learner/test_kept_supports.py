"""Supports that are kept for a whole batch: the same bits again, in less memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.rollout import Sampling
from learner.algorithms.ppo import PPO
from learner.batches.batching import collate
from learner.distributed.ranks import ALONE
from learner.functional.support import pack_bits, unpack_bits
from learner.passes.kept_supports import BITS, EXCLUDED, LISTED, keep, pack
from tests.learner.tiny import VOCAB, make_learner, parts, random_rollouts, whole


def test_the_shorter_list_is_kept_and_bits_where_both_are_long() -> None:
    # 64 words are two numbers of bits: one word is shorter, 63 words are one that is missing, 32 are neither
    allowed_NV = torch.zeros(3, 64, dtype=torch.bool)
    allowed_NV[0, 9], allowed_NV[1] = True, torch.arange(64) != 40
    allowed_NV[2, ::2] = True
    packed = pack(pack_bits(allowed_NV), 64, 2**20)
    assert packed.kinds_N.tolist() == [LISTED, EXCLUDED, BITS]
    assert packed.counts_N.tolist() == [1, 1, 2]
    # 0b0101…01 is 0x55555555
    assert packed.words_M.tolist() == [9, 40, 0x55555555, 0x55555555]


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**20),
    vocab_size=st.sampled_from([1, 7, 8, 31, 32, 33, 100]),
    budget=st.sampled_from([1, 200, 2**20]),
    token_budget=st.sampled_from([1, 60, 2**20]),
)
def test_what_comes_back_is_what_was_kept(seed: int, vocab_size: int, budget: int, token_budget: int) -> None:
    """Supports from no word to all come back, packed by other micro-batches than they are asked for."""
    generator = torch.Generator().manual_seed(seed)
    batch = collate(random_rollouts(7, seed))
    shape = (*batch.mask_BT.shape, vocab_size)
    shares_BT1 = torch.rand(*shape[:2], 1, generator=generator).mul(1.4).sub(0.2)
    allowed_BTV = torch.rand(shape, generator=generator) < shares_BT1
    kept = [
        (micro, pack(pack_bits(micro.pick(allowed_BTV)), vocab_size, budget))
        for micro in parts(batch, token_budget)
    ]
    supports = keep(kept, batch, vocab_size, ALONE)
    for micro in (whole(batch), *parts(batch, 45)):
        again_NV = unpack_bits(supports.bits(micro), vocab_size)
        assert torch.equal(again_NV, micro.pick(allowed_BTV))
    assert len(supports.words_M) <= batch.num_tokens * -(-vocab_size // 32)


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen |= {tuple(leaf.shape) for leaf in torch.utils._pytree.tree_leaves(made) if _is(leaf)}
        return made


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(max_tokens=17, top_k=5), Sampling(max_tokens=17, min_tokens=2, top_p=0.9)],
    ids=["top-k", "top-p"],
)
def test_scores_and_updates_hold_no_word_of_every_token(models: dict[str, Path], sampling: Sampling) -> None:
    rollouts = random_rollouts(12)
    batch = collate(rollouts)
    learner = make_learner(
        models["llama"], PPO(num_epochs=2), sampling=sampling, token_budget=60, logits_budget=8 * VOCAB
    )
    with Shapes() as shapes:
        learner.update(rollouts)
    num_rollouts, num_tokens = batch.mask_BT.shape
    assert (num_rollouts, num_tokens) in shapes.seen
    assert not [shape for shape in shapes.seen if len(shape) > 2 and shape[:2] == (num_rollouts, num_tokens)]
