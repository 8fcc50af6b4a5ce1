"""Learners with an adapter a role, and rollouts in which two roles take turns."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.distributed.rendezvous import Rendezvous
from learner.models.adapter_settings import AdapterSettings
from learner.optimization.kl_control import KLSettings
from learner.role_learners import RoleLearners
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.tiny import random_rollouts

FAST: dict[str, Any] = {"learning_rate": 1e-2, "optimizer": OptimizerSettings(eps=1e-4)}
ALGORITHMS: dict[str, Algorithm] = {
    "grpo": GRPO(**FAST, kl=KLSettings(placement="loss", estimator="k3", coefficient=0.1)),
    "ppo": PPO(**FAST, num_epochs=2, minibatch_size=4),
    "ppo_own_trunk": PPO(**FAST, num_epochs=1, normalize_values=True),
}
BOTH = ("pro", "con")


def adapter(*roles: str, **options: Any) -> AdapterSettings:
    return AdapterSettings(kind="lora", r=4, serve="adapter", roles=roles, **options)


def make(path: Path, name: str, *roles: str, rendezvous: Rendezvous | None = None) -> RoleLearners:
    trunk: Any = "separate" if name.endswith("trunk") else "shared"
    return RoleLearners(
        ModelSettings(path=str(path), dropout=False, value_trunk=trunk, adapter=adapter(*roles)),
        ALGORITHMS[name],
        LearnerSettings(device="cpu"),
        seed=5,
        iterations=4,
        rendezvous=rendezvous,
    )


def debates(seed: int, *roles: str) -> list[Rollout]:
    """Groups of two rollouts, each with turns of both roles, or with those of some alone."""
    rollouts = []
    for one in random_rollouts(8, seed):
        [first, *_], [second, *_] = one.turns, random_rollouts(8, seed + 100)[one.lease_id].turns
        talk = ((first, "pro", 1.0), (second, "con", -1.0), (first, "con", 0.5))
        turns = tuple(
            replace(turn, role=role, fresh=True, reward=sign * (turn.reward or 0.0))
            for turn, role, sign in talk
            if role in (roles or BOTH)
        )
        rollouts.append(replace(one, group=one.lease_id // 2, turns=turns))
    return rollouts
