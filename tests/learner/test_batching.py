"""Rollouts as tensors, and micro-batches within a budget."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import LearnerError
from contracts.rollout import FinishReason, Prompt, Rollout
from learner.batching import collate
from tests.learner.tiny import parts, random_rollouts, rollout


def test_a_rollout_is_laid_out_as_documented() -> None:
    batch = collate([rollout(0, (12, 14), (15, 2), 0.5, logprobs=(-0.7, -0.1), version=4)])
    assert batch.tokens_BL.tolist() == [[12, 14, 15, 2]]
    assert batch.loss_mask_BL.tolist() == [[False, False, True, True]]
    assert batch.lengths_B.tolist() == [4]
    assert batch.mask_BT.tolist() == [[True, True]]
    assert batch.rewards_BT.tolist() == [[0.0, 0.5]]
    torch.testing.assert_close(batch.behavior_logprobs_BT, torch.tensor([[-0.7, -0.1]]))
    assert batch.versions_BT.tolist() == [[4, 4]]
    assert (batch.num_rollouts, batch.num_tokens) == (1, 2)


def test_shorter_rollouts_are_padded_on_the_right() -> None:
    batch = collate([rollout(0, (5,), (6, 7, 8), 1.0), rollout(1, (3, 4), (9,), 2.0)])
    assert batch.tokens_BL.tolist() == [[5, 6, 7, 8], [3, 4, 9, 0]]
    assert batch.loss_mask_BL.int().tolist() == [[0, 1, 1, 1], [0, 0, 1, 0]]
    assert batch.mask_BT.int().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.rewards_BT.tolist() == [[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]]
    assert batch.lengths_B.tolist() == [4, 3]


def test_turns_follow_each_other_and_only_the_models_tokens_are_aligned_left() -> None:
    first = rollout(0, (5,), (6, 7), 1.0, version=2)
    second = rollout(0, (8, 9), (10,), -1.0, version=3)
    batch = collate([Rollout(0, 0, first.prompt, first.turns + second.turns, FinishReason.STOP)])
    assert batch.tokens_BL.tolist() == [[5, 6, 7, 8, 9, 10]]
    assert batch.loss_mask_BL.int().tolist() == [[0, 1, 1, 0, 0, 1]]
    assert batch.rewards_BT.tolist() == [[0.0, 1.0, -1.0]]
    assert batch.versions_BT.tolist() == [[2, 2, 3]]


@pytest.mark.parametrize(
    "bad",
    [
        rollout(8, (1,), ()),
        rollout(8, (), (1,)),
        Rollout(8, 0, Prompt("p8", ""), (), FinishReason.FAILED),
    ],
)
def test_a_rollout_without_prompt_or_answer_is_refused_by_name(bad: Rollout) -> None:
    with pytest.raises(LearnerError, match=r"rollout of lease 8 \(prompt p8\).* at least 1"):
        collate([rollout(0, (1,), (2,)), bad])


@given(st.integers(1, 20), st.integers(0, 99), st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(num: int, seed: int, budget: int) -> None:
    batch = collate(random_rollouts(num, seed))
    rows: list[int] = []
    for micro in parts(batch, budget):
        rows += micro.rows_B.tolist()
        longest = int(batch.lengths_B[micro.rows_B].max())
        assert micro.tokens_BL.shape == micro.loss_mask_BL.shape == (len(micro.rows_B), longest)
        assert micro.tokens_BL.numel() <= budget or len(micro.rows_B) == 1
        assert torch.equal(micro.tokens_BL, batch.tokens_BL[micro.rows_B, :longest])
        assert torch.equal(micro.loss_mask_BL.sum(-1), batch.mask_BT[micro.rows_B].sum(-1))
    assert sorted(rows) == list(range(num))


def test_rows_of_like_length_share_a_micro_batch_and_a_long_one_is_alone() -> None:
    answers = [2, 19, 3, 2, 4]  # with a prompt token: 3, 20, 4, 3, 5 tokens
    batch = collate([rollout(i, (1,), (1,) * n) for i, n in enumerate(answers)])
    # 20 alone, over the budget; 5 and 4 make 2 × 5 = 10; the two 3s 6
    assert [micro.rows_B.tolist() for micro in parts(batch, 10)] == [[1], [4, 2], [0, 3]]
