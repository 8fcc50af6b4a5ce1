"""Numbers of single tokens that an update leaves for people: which rollouts, which numbers, which tokens."""

from dataclasses import replace

import pytest
import torch

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.base import Credit
from learner.batches.batching import collate
from learner.mismatch_settings import MismatchSettings
from learner.off_policy import Correction
from learner.passes.scoring import ScoredBatch
from learner.passes.token_numbers import EACH, token_numbers


def rollout(lease: int, *logprobs: float) -> Rollout:
    tokens = tuple(range(5, 5 + len(logprobs)))
    turn = Turn((3, 4), tokens, "so", logprobs, (0,) * len(logprobs), 1.0)
    return Rollout(lease, 0, Prompt("p", "p"), (turn,), FinishReason.STOP)


def test_numbers_are_those_of_the_update_and_bounds_leave_tokens_out() -> None:
    batch = collate([rollout(7, -1.0, -2.0), rollout(9, -0.5, -3.0, -1.0)])
    old_BT = torch.tensor([[-1.0, -1.0, 0.0], [-0.5, -3.0, -1.0]])  # its second token: e times as likely
    scored = ScoredBatch(old_BT, old_BT, old_BT, torch.ones_like(old_BT))
    advantages_BT = torch.tensor([[0.5, 0.25, 0.0], [-1.0, -1.0, -2.0]])
    credit = Credit(advantages_BT, advantages_BT)
    seven, nine = token_numbers(batch, scored, credit, Correction(None, MismatchSettings(mask_above=2.0)))
    assert (seven.lease_id, seven.role, seven.num_tokens) == (7, "", 2)
    assert list(seven.logprobs) == [-1.0, -1.0] and list(seven.advantages) == [0.5, 0.25]
    assert list(seven.in_loss) == [1, 0]
    assert list(nine.advantages) == [-1.0, -1.0, -2.0] and list(nine.in_loss) == [1, 1, 1]
    without = replace(credit, trains_B=torch.tensor([True, False]))
    assert [list(row.in_loss) for row in token_numbers(batch, scored, without, None)] == [[1, 1], [0, 0, 0]]


def test_only_the_policys_first_rollouts_that_were_scored_have_numbers() -> None:
    rollouts = [replace(rollout(number, -1.0), from_data=number == 2) for number in range(EACH + 5)]
    batch = collate(rollouts)
    zeros_BT = torch.zeros_like(batch.rewards_BT)
    credit = Credit(zeros_BT, zeros_BT)
    scored = ScoredBatch(zeros_BT, zeros_BT, zeros_BT, zeros_BT)
    ids = [numbers.lease_id for numbers in token_numbers(batch, scored, credit, None)]
    assert ids == [0, 1, *range(3, EACH + 1)]
    assert token_numbers(batch, ScoredBatch.unscored(batch), credit, None) == []


def test_a_long_rollout_has_numbers_of_its_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.passes.token_numbers.MOST_TOKENS", 2)
    batch = collate([rollout(1, -1.0, -2.0, -3.0)])
    old_BT = batch.behavior_logprobs_BT
    (numbers,) = token_numbers(
        batch, ScoredBatch(old_BT, old_BT, old_BT, old_BT), Credit(old_BT, old_BT), None
    )
    assert numbers.num_tokens == 3 and list(numbers.logprobs) == [-1.0, -2.0]
