"""Rollouts as tensors, and micro-batches within a budget."""

import pickle
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import turn
from contracts.errors import LearnerError
from contracts.rollout import FinishReason, Prompt, Rollout
from learner.batches.batching import MicroBatch, collate
from learner.batches.splitting import micro_batches, split_by_tokens
from tests.learner.tiny import games, parts, played, rollout


def rows_of(micro: MicroBatch) -> list[int]:
    """The rollouts of a micro-batch, in its order."""
    rows: list[int] = micro.rows_N.unique_consecutive().tolist()
    return rows


def test_a_rollout_is_laid_out_as_documented() -> None:
    batch = collate([rollout(0, (12, 14), (15, 2), 0.5, logprobs=(-0.7, -0.1), version=4)])
    assert batch.tokens_SL.tolist() == [[12, 14, 15, 2]]
    assert batch.loss_mask_SL.tolist() == [[False, False, True, True]]
    assert batch.lengths_S.tolist() == [4]
    assert batch.mask_BT.tolist() == [[True, True]]
    assert batch.rewards_BT.tolist() == [[0.0, 0.5]]
    torch.testing.assert_close(batch.behavior_logprobs_BT, torch.tensor([[-0.7, -0.1]]))
    assert batch.versions_BT.tolist() == [[4, 4]]
    assert (batch.num_rollouts, batch.num_tokens) == (1, 2)


def test_rollouts_of_another_process_give_the_same_batch_without_a_tuple(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit by bit, and from the bytes that crossed."""

    def laid_out(numbers: Any) -> Any:
        raise AssertionError("somebody laid the numbers out")

    here = [rollout(0, (12, 14), (15, 70_000), 0.5, logprobs=(-0.7, -0.1), version=4), *games(6)]
    there = pickle.loads(pickle.dumps(here))
    monkeypatch.setattr(turn, "unpacked", laid_out)
    expected, received = collate(here), collate(there)
    for field in fields(expected):
        one, other = getattr(expected, field.name), getattr(received, field.name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other)
        else:
            assert one == other


def test_shorter_rollouts_are_padded_on_the_right() -> None:
    batch = collate([rollout(0, (5,), (6, 7, 8), 1.0), rollout(1, (3, 4), (9,), 2.0)])
    assert batch.tokens_SL.tolist() == [[5, 6, 7, 8], [3, 4, 9, 0]]
    assert batch.loss_mask_SL.int().tolist() == [[0, 1, 1, 1], [0, 0, 1, 0]]
    assert batch.mask_BT.int().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.rewards_BT.tolist() == [[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]]
    assert batch.lengths_S.tolist() == [4, 3]


def test_turns_follow_each_other_and_only_the_models_tokens_are_aligned_left() -> None:
    first = rollout(0, (5,), (6, 7), 1.0, version=2)
    second = rollout(0, (8, 9), (10,), -1.0, version=3)
    batch = collate([Rollout(0, 0, first.prompt, first.turns + second.turns, FinishReason.STOP)])
    assert batch.tokens_SL.tolist() == [[5, 6, 7, 8, 9, 10]]
    assert batch.loss_mask_SL.int().tolist() == [[0, 1, 1, 0, 0, 1]]
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


@given(st.integers(1, 20), st.integers(0, 99), st.integers(1, 200), st.booleans())
def test_micro_batches_hold_every_token_once_within_the_budget(
    num: int, seed: int, budget: int, whole_rollouts: bool
) -> None:
    batch = collate(games(num, seed))
    tokens, seen = torch.zeros_like(batch.mask_BT, dtype=torch.long), torch.zeros_like(batch.mask_BT)
    every = torch.arange(num)
    for micro in micro_batches(batch, every, budget, whole_rollouts=whole_rollouts):
        assert micro.tokens_SL.shape == micro.loss_mask_SL.shape
        assert bool(micro.loss_mask_SL[:, -1].any())  # as wide as the longest, no wider
        rows = set(micro.rows_N.tolist())
        assert micro.tokens_SL.numel() <= budget or len(rows if whole_rollouts else micro.tokens_SL) == 1
        assert not micro.pick(seen).any()
        micro.place(seen, torch.ones(len(micro.rows_N), dtype=torch.bool))
        micro.place(tokens, micro.targets_N)
        if whole_rollouts:
            assert all(seen[row].sum() == batch.mask_BT[row].sum() for row in rows)
    assert torch.equal(seen, batch.mask_BT)
    expected = [[t for turn in one.turns for t in turn.tokens] for one in games(num, seed)]
    assert [row[mask].tolist() for row, mask in zip(tokens, batch.mask_BT, strict=True)] == expected


def test_rows_of_like_length_share_a_micro_batch_and_a_long_one_is_alone() -> None:
    answers = [2, 19, 3, 2, 4]  # with a prompt token: 3, 20, 4, 3, 5 tokens
    batch = collate([rollout(i, (1,), (1,) * n) for i, n in enumerate(answers)])
    # 20 alone, over the budget; 5 and 4 make 2 × 5 = 10; the two 3s 6
    assert [rows_of(micro) for micro in parts(batch, 10)] == [[1], [4, 2], [0, 3]]


# Rollouts of several sequences


def test_a_fresh_turn_begins_a_sequence_and_continues_its_rollout() -> None:
    batch = collate([played(((5, 6), (7, 8), 0.5, True), ((5, 9), (2,), 1.0, True)), rollout(1, (3,), (4,))])
    assert batch.tokens_SL.tolist() == [[5, 6, 7, 8], [5, 9, 2, 0], [3, 4, 0, 0]]
    assert batch.loss_mask_SL.int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 0], [0, 1, 0, 0]]
    assert (batch.lengths_S.tolist(), batch.rows_S.tolist()) == ([4, 3, 2], [0, 0, 1])
    assert batch.columns_S.tolist() == [0, 2, 0]
    assert batch.mask_BT.int().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.rewards_BT.tolist() == [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    assert batch.positions_BT.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert (batch.num_rollouts, batch.num_sequences, batch.num_tokens) == (2, 3, 4)


def test_a_part_knows_where_its_tokens_belong() -> None:
    batch = collate([played(((5,), (7, 8), 0.0, True), ((9,), (2,), 0.0, True)), rollout(1, (3,), (4,))])
    micro = batch.part([1, 2])
    assert (micro.rows_N.tolist(), micro.columns_N.tolist()) == ([0, 1], [2, 0])
    assert micro.targets_N.tolist() == [2, 4]
    assert micro.pick(torch.tensor([[10, 11, 12], [20, 21, 22]])).tolist() == [12, 20]
    target = torch.zeros(2, 3)
    micro.place(target, torch.tensor([1.0, 2.0]))
    assert target.tolist() == [[0, 0, 1], [2, 0, 0]]
    # a rollout's sequences stand beside each other, in whatever order they were asked for
    assert batch.part([0, 2, 1]).responses_N.tolist() == [0, 0, 0, 1]
    assert batch.part([2, 0, 1]).responses_N.tolist() == [0, 1, 1, 1]


def test_a_long_sequence_leaves_its_rollout_unless_that_must_stay_whole() -> None:
    # sequences of 9 and 3 tokens, and of 4: within 8 tokens 9 is alone, 4 and 3 together
    batch = collate(
        [played(((1,), (1,) * 8, 0.0, True), ((1,), (1, 1), 0.0, True)), rollout(1, (1,), (1,) * 3)]
    )
    assert [rows_of(micro) for micro in parts(batch, 8)] == [[0], [1, 0]]
    whole = micro_batches(batch, torch.arange(2), 8, whole_rollouts=True)
    assert [rows_of(micro) for micro in whole] == [[0], [1]]


def test_what_was_earned_without_a_token_belongs_to_the_token_before() -> None:
    # nothing was said before the first reward, and nothing but the world's turn stands between 1 and 2
    one = played(
        ((5,), (), 9.0, True), ((6,), (7, 8), 1.0, True), ((4,), (), 2.0, True), ((3,), (2,), 4.0, False)
    )
    batch = collate([one])
    assert batch.rewards_BT.tolist() == [[0.0, 3.0, 4.0]]
    assert batch.tokens_SL.tolist() == [[6, 7, 8], [4, 3, 2]]


def test_a_fresh_turn_that_shows_nothing_is_refused() -> None:
    with pytest.raises(LearnerError, match=r"lease 0 \(prompt p0\) has 0 prompt tokens and 2 generated"):
        collate([played(((5,), (7,), 0.0, True), ((), (2,), 1.0, True))])


def test_minibatches_of_tokens_are_whole_rollouts_until_they_have_so_many() -> None:
    # the world's tokens do not count: rollouts of 2, 3, 1, 4 and 1 tokens
    batch = collate([rollout(i, (1,) * 5, (1,) * count) for i, count in enumerate((2, 3, 1, 4, 1))])

    def split(rows: list[int], num_tokens: int) -> list[list[int]]:
        return [part.tolist() for part in split_by_tokens(batch, torch.tensor(rows), num_tokens)]

    assert split([0, 1, 2, 3, 4], 5) == [[0, 1], [2, 3], [4]]
    assert split([0, 1, 2, 3, 4], 4) == [[0, 1], [2, 3], [4]]  # one that exceeds it stays whole
    assert split([3, 4, 0, 2, 1], 4) == [[3], [4, 0, 2], [1]]
    assert split([0, 1, 2, 3, 4], 11) == split([0, 1, 2, 3, 4], 99) == [[0, 1, 2, 3, 4]]
    assert split([4, 3], 1) == [[4], [3]]
