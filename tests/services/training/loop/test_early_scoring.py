"""Finished rollouts go to an idle learner while others are still being written, each of them once."""

from collections.abc import Sequence

import pytest

from contracts.errors import InputError
from contracts.rollout import Rollout
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.compose import run_settings
from services.training.loop.early_scoring import EarlyScoring
from services.training.preflight.deployment import Machine, deployment
from tests.learner.tiny import random_rollouts


class Busy:
    """A learner that takes every second part it is offered."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.num_offers = 0

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> bool:
        assert num_rollouts == 6
        self.num_offers += 1
        if self.num_offers % 2 == 0:
            return False
        self.taken.append([rollout.lease_id for rollout in rollouts])
        return True


def test_what_a_busy_learner_does_not_take_is_offered_again() -> None:
    learner, rollouts = Busy(), random_rollouts(6)
    early = EarlyScoring(learner, 6)  # type: ignore[arg-type]
    for part in (rollouts[:2], rollouts[2:3], (), rollouts[3:]):
        early.offer(part)
    ids = [rollout.lease_id for rollout in rollouts]
    assert learner.taken == [ids[:2], ids[2:3]]
    early.offer()
    assert learner.taken == [ids[:2], ids[2:3], ids[3:]]
    num_before = learner.num_offers
    early.offer()
    assert learner.num_offers == num_before  # nothing waits


def test_without_a_learner_to_score_nothing_is_kept() -> None:
    early = EarlyScoring(None, 6)
    early.offer(random_rollouts(6))
    assert early._waiting == []


@pytest.mark.parametrize("override", ["rollout.max_staleness=1", "learner.num_processes=2"])
def test_where_it_could_not_be_it_is_refused(override: str) -> None:
    with pytest.raises(InputError, match=r"learner\.score_early=true with"):
        run_settings(["model.path=m", "learner.score_early=true", override])


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("algorithm=nlpo", "restricted"),
        ("rollout.top_k=5", "restricted"),
        ("algorithm=grpo", "come with the update"),
        ("algorithm=dapo", "chooses the batch at the end"),
        ("algorithm=supervised", "scores nothing"),
    ],
)
def test_where_nothing_would_come_of_it_it_is_refused(override: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        run_settings(["model.path=m", "learner.score_early=true", override])


@pytest.mark.parametrize(
    ("num_gpus", "cluster", "alone"),
    [
        (0, ClusterSettings(), False),
        (2, ClusterSettings(learner_gpus=1, worker_gpus=1), True),
        (1, ClusterSettings(learner_gpus=0.5, worker_gpus=0.5), False),
    ],
)
def test_by_default_a_learner_with_a_gpu_of_its_own_does(
    num_gpus: int, cluster: ClusterSettings, alone: bool
) -> None:
    machine = Machine(num_cores=4, num_gpus=num_gpus)
    deployed = deployment(RolloutSettings(), cluster, 1, machine, is_encoder_decoder=False)
    assert deployed.learner_is_alone is alone
