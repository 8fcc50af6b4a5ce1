"""KTO's reference point: responses to other prompts, worked by hand and by plain log-probabilities."""

from pathlib import Path

import pytest
import torch

from contracts.rollout import Rollout
from learner.models.actor_critic import frozen_copy
from learner.passes.mismatched_kl import mismatched, mismatched_kl
from tests.learner.tiny import make_pair, perturb, rollout

CPU = torch.device("cpu")
GIVEN = [rollout(0, (3, 4), (5, 6, 2)), rollout(1, (7,), (8, 2)), rollout(2, (9, 10, 11), (2,))]


def texts(rollouts: list[Rollout]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(one.turns[0].observation, one.turns[0].tokens) for one in rollouts]


def test_each_prompt_gets_the_next_ones_response() -> None:
    # the longest sequence has five tokens, which cuts (5, 6, 2) after three tokens of prompt
    assert texts(mismatched(GIVEN)) == [((3, 4), (8, 2)), ((7,), (2,)), ((9, 10, 11), (5, 6))]


def test_a_response_to_the_same_prompt_is_no_mismatch() -> None:
    same = rollout(3, (3, 4), (6, 2))
    assert texts(mismatched([GIVEN[0], same, GIVEN[1]])) == [((3, 4), (8, 2)), ((7,), (5, 6, 2))]
    assert mismatched([GIVEN[0], same]) == [] and mismatched(GIVEN[:1]) == []


def test_the_kl_by_plain_log_probabilities(models: dict[str, Path]) -> None:
    pair = make_pair(models["llama"])
    reference = frozen_copy(pair.policy)
    assert mismatched_kl(GIVEN, pair.policy, reference, 100, CPU) == 0.0
    perturb(pair.lm, 0.1)
    sums = []
    for one in mismatched(GIVEN):
        seen, answer = len(one.turns[0].observation), torch.tensor(one.turns[0].tokens)
        of_both = []
        for lm in (pair.lm, reference.lm):
            with torch.no_grad():
                logits_LV = lm(torch.tensor([one.tokens])).logits[0, seen - 1 : -1]
            of_both.append(float(logits_LV.log_softmax(-1).gather(-1, answer[:, None]).sum()))
        sums.append(of_both[0] - of_both[1])
    mean = sum(sums) / 3
    for budget in (1, 100):
        divergence = mismatched_kl(GIVEN, pair.policy, reference, budget, CPU)
        turned = mismatched_kl(GIVEN, reference, pair.policy, budget, CPU)
        assert (divergence, turned) == pytest.approx((max(0.0, mean), max(0.0, -mean)), rel=1e-4)
    assert abs(mean) > 0.01
