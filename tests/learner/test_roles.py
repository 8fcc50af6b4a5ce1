"""Two roles of one policy whose rewards sum to zero: each learns from its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.algorithms.dapo import DAPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rloo import RLOO
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.tiny import make_learner, random_rollouts, snapshot

PLAIN = {
    "learning_rate": 1e-2,
    "optimizer": OptimizerSettings(weight_decay=0.0, eps=1e-4),
    "kl": KLSettings(coefficient=0.0),
}
PRO, CON = (5, 6), (9, 8)  # what the roles read
ALGORITHMS: dict[str, Algorithm] = {
    "grpo": GRPO(**PLAIN),
    "rloo": RLOO(**PLAIN),
    "dapo": DAPO(**PLAIN),
    "ppo": PPO(**PLAIN, advantage_whitening="none"),
}


def game(lease: int, pro: int, con: int, reward: float) -> Rollout:
    """Each role writes a token; what one wins, the other loses."""

    def turn(read: tuple[int, ...], token: int, reward: float, role: str) -> Turn:
        return Turn(read, (token,), "", (-3.0,), (0,), reward, fresh=True, role=role)

    turns = (turn(PRO, pro, reward, "pro"), turn(CON, con, -reward, "con"))
    return Rollout(lease, 1, Prompt("p", ""), turns, FinishReason.STOP)


GAMES = [game(1, 20, 30, 1.0), game(2, 21, 31, -1.0)]  # 20 and 31 win, 21 and 30 lose


def logprob(learner: Learner, read: tuple[int, ...], token: int) -> float:
    learner.pair.eval()
    with torch.no_grad():
        logits = learner.pair.lm(torch.tensor([read])).logits[0, -1]
    return float(logits.log_softmax(-1)[token])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_role_learns_from_its_own_reward(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models["llama"], ALGORITHMS[name])
    places = {(PRO, 20): 1, (PRO, 21): -1, (CON, 30): -1, (CON, 31): 1}
    before = {place: logprob(learner, *place) for place in places}
    assert learner.algorithm.teaching(GAMES) == GAMES  # though both games sum to 0
    learner.update(GAMES)
    for place, sign in places.items():
        assert sign * (logprob(learner, *place) - before[place]) > 0, place


def test_a_group_teaches_if_one_of_its_roles_does() -> None:
    same = [game(1, 20, 30, 1.0), game(2, 21, 31, 1.0)]
    one = [same[0], replace(same[1], turns=(same[1].turns[0], replace(same[1].turns[1], reward=0.0)))]
    dapo = ALGORITHMS["dapo"]
    assert (dapo.teaching(same), dapo.teaching(one)) == ([], one)


@pytest.mark.parametrize("name", ["rloo", "ppo"])
def test_roles_are_scored_early_as_they_are_later(models: dict[str, Path], name: str) -> None:
    snapshots = []
    rollouts = [
        replace(
            one,
            turns=tuple(replace(turn, role="ab"[k % 2], fresh=True) for k, turn in enumerate(one.turns)),
        )
        for one in random_rollouts(12)
    ]
    for early in (True, False):
        learner = make_learner(models["llama"], ALGORITHMS[name])
        if early:
            learner.score_early(rollouts[3:9], 12)
        learner.update(rollouts)
        snapshots.append(snapshot(learner.pair))
    torch.testing.assert_close(snapshots[0], snapshots[1], atol=1e-4, rtol=1e-4)
