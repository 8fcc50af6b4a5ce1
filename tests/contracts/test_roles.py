"""Roles of one policy in an episode become separate rollouts with separate groups."""

import pickle

from contracts.roles import by_role
from contracts.rollout import FinishReason, Prompt, Rollout, Turn


def turn(role: str, reward: float, token: int = 7) -> Turn:
    return Turn((5,), (token,), "…", (-1.0,), (0,), reward, fresh=True, role=role)


def debate(lease: int, group: int, *turns: Turn) -> Rollout:
    return Rollout(lease, group, Prompt("p", ""), turns, FinishReason.STOP)


FIRST = debate(8, 4, turn("pro", 0.0, 1), turn("con", -1.0, 2), turn("pro", 1.0, 3))
SECOND = debate(9, 4, turn("pro", -1.0), turn("con", 1.0))


def test_each_role_is_a_rollout_in_a_group_of_its_own() -> None:
    parts = by_role([FIRST, SECOND])
    assert [(part.lease_id, part.group, part.roles) for part in parts] == [
        *[(8, 9, ("pro",)), (8, 8, ("con",))],  # con is 0 and pro is 1: 4 · 2 + 0 = 8, 4 · 2 + 1 = 9
        *[(9, 9, ("pro",)), (9, 8, ("con",))],
    ]
    assert [turn.tokens for turn in parts[0].turns] == [(1,), (3,)]
    assert [part.total_reward for part in parts] == [1, -1, -1, 1]


def test_rollouts_of_one_role_stay_as_they_are() -> None:
    for role in ("", "pro"):
        alone = [debate(1, 3, turn(role, 1.0)), debate(2, 3, turn(role, 0.5))]
        assert all(part is whole for part, whole in zip(by_role(alone), alone, strict=True))


def test_groups_of_roles_and_of_prompts_never_meet() -> None:
    rollouts = [debate(lease, lease, turn("a", 1.0), turn("b", 0.0), turn("", 0.0)) for lease in range(5)]
    assert sorted(part.group for part in by_role([*rollouts, debate(9, 5, turn("b", 1.0))])) == [
        *range(15),
        17,
    ]


def test_the_total_of_several_roles_is_their_mean() -> None:
    assert (FIRST.total_reward, SECOND.total_reward) == (0, 0)
    assert debate(1, 1, turn("a", 1.0), turn("a", 2.0)).total_reward == 3
    assert debate(1, 1, turn("a", 1.0), turn("a", 2.0), turn("b", 1.0)).total_reward == 2
    assert debate(1, 1).total_reward == 0


def test_a_role_crosses_processes() -> None:
    (got,) = pickle.loads(pickle.dumps((FIRST,)))
    assert got.roles == ("pro", "con") and got == FIRST
    assert got.turns[0].with_reward(2.0).role == "pro"
