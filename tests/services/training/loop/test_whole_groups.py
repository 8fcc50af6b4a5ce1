"""A reward of whole groups gets a prompt's texts together: when the last is finished, and in their order."""

import io
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as Terminal

from contracts.errors import EpisodeError
from contracts.rollout import FinishReason, Lease, Rollout, Sampling
from contracts.scores import Sample, Score
from services.config.reward_view import Judging
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.whole_groups import WholeGroups
from tests.fakes import FakeRewards, FakeWorkers, prompts, rollout_of


def leases(num_groups: int, size: int) -> list[Lease]:
    prompt = prompts(1)[0]
    return [Lease(n, prompt, (11,), n // size, 0, Sampling(max_tokens=4)) for n in range(num_groups * size)]


class Shuffled(FakeWorkers):
    """Finish the rollouts in any order, some at a time; the environment of every seventh fails."""

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        left = [self._played(lease) for lease in leases]
        random.Random(3).shuffle(left)
        while left:
            yield [left.pop() for _ in range(min(len(left), 3))]

    def _played(self, lease: Lease) -> Rollout:
        if lease.id % 7 == 5:
            error = EpisodeError("it died")
            return Rollout(lease.id, lease.group, lease.prompt, (), FinishReason.FAILED, error=error)
        return rollout_of(lease)


class Calls(FakeRewards):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        for group in dict.fromkeys(sample.group for sample in samples):
            self.seen.append([sample.text for sample in samples if sample.group == group])
        return super().submit(samples)


def test_each_group_is_submitted_once_whole_and_in_order() -> None:
    rewards, console = Calls(), Console(Terminal(file=io.StringIO()))
    judging = Judging(whole_groups=True)
    collect = Collector(Shuffled([]), rewards, FailureBudget(0, 100), console, lambda: None, 5.0, judging)
    batch = collect(leased := leases(6, 4))
    played = [lease for lease in leased if lease.id % 7 != 5]
    expected = [[f"text {lease.id}" for lease in played if lease.group == group] for group in range(6)]
    assert sorted(rewards.seen) == sorted(expected)
    assert sorted(rollout.lease_id for rollout in batch.rollouts) == [lease.id for lease in played]


def test_without_such_a_reward_nothing_waits() -> None:
    rewards, console = Calls(), Console(Terminal(file=io.StringIO()))
    Collector(Shuffled([]), rewards, FailureBudget(0, 100), console, lambda: None, 5.0)(leases(6, 4))
    assert len(rewards.seen) > 6  # parts of groups


@given(st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False), st.integers(1, 6))
def test_whatever_the_order_every_rollout_comes_out_once(
    num_groups: int, size: int, order: random.Random, at_once: int
) -> None:
    leased = leases(num_groups, size)
    finished = [rollout_of(lease) for lease in leased]
    order.shuffle(finished)
    waiting, out = WholeGroups(leased), []
    for begin in range(0, len(finished), at_once):
        ready = waiting.take(finished[begin : begin + at_once])
        assert len(ready) % size == 0
        out += [(rollout.group, rollout.lease_id) for rollout in ready]
    assert sorted(out) == [(lease.group, lease.id) for lease in leased]
    for group in range(num_groups):
        ids = [lease_id for of_group, lease_id in out if of_group == group]
        assert ids == sorted(ids)
