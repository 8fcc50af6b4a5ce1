"""The stream of groups over fakes: order, bound, refills, the state, and what the lengths tell."""

import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console as Terminal

from contracts.errors import InputError, RunError
from contracts.rollout import Lease, Rollout, Sampling
from learner.algorithms.base import Algorithm
from learner.algorithms.dapo import DAPO
from learner.algorithms.grpo import GRPO
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.tracking.console import Console
from services.terminal.interrupts import Interrupted
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.finished_groups import FinishedGroups
from services.training.sources.leasing import LeaseSource
from tests.fakes import FakeRewards, FakeWorkers, WordTokens, prompts, rollout_of
from tests.services.training.loop.test_controller import Loop
from tests.services.training.loop.test_refilled import Earned
from tests.services.training.loop.test_rollout_stream import run_settings

WANTED, GROUP = 3, 3  # prompts of an iteration, texts of a prompt


class Writers(FakeWorkers):
    """Writes each text with the weights of its lease; brings back those that a test lets finish."""

    def __init__(self, is_ready: Callable[[Lease], bool] = lambda lease: True) -> None:
        super().__init__([])
        self.version, self.is_ready = 0, is_ready
        self.began: dict[int, int] = {}

    def submit(self, leases: Sequence[Lease]) -> None:
        super().submit(leases)
        self.began |= {lease.id: self.version for lease in leases}

    def collect(self) -> list[Rollout]:
        ready = [lease for lease in self.submitted if self.is_ready(lease)]
        for lease in ready:
            self.submitted.remove(lease)
        return [rollout_of(lease, self.began[lease.id]) for lease in ready]


def leases() -> LeaseSource:
    return LeaseSource(
        prompts(5), PromptTokens(WordTokens()), Sampling(max_tokens=4), group_size=GROUP, seed=0
    )


def stream(
    workers: FakeWorkers,
    max_staleness: int = 2,
    iterations: int = 9,
    *,
    prompts: LeaseSource | None = None,
    rewards: FakeRewards | None = None,
    algorithm: Algorithm | None = None,
    screen: io.StringIO | None = None,
    max_concurrent: int = 256,
) -> FinishedGroups:
    collector = Collector(
        workers,
        rewards or FakeRewards(),
        FailureBudget(0, 0),
        Console(Terminal(file=screen or io.StringIO(), width=400)),
        lambda: None,
        10.0,
    )
    return FinishedGroups(
        prompts or leases(),
        WANTED,
        collector,
        workers,
        (),
        algorithm or GRPO(),
        max_staleness=max_staleness,
        iterations=iterations,
        max_concurrent=max_concurrent,
    )


def groups(rollouts: Sequence[Rollout]) -> list[int]:
    assert [rollout.lease_id for rollout in rollouts] == sorted(rollout.lease_id for rollout in rollouts)
    numbers = sorted({rollout.group for rollout in rollouts})
    assert len(rollouts) == GROUP * len(numbers)
    return numbers


def test_a_slow_group_is_passed_by_and_trained_on_before_it_is_too_old() -> None:
    """Group 1 is finished only once the weights are of version 2, at which it is due."""
    workers = Writers(lambda lease: lease.group != 1 or workers.version == 2)
    source = stream(workers)
    seen = []
    for done in range(4):
        workers.version = done
        seen.append(groups(source.next(done).rollouts))
        source.attend()
    assert 1 not in seen[0] + seen[1] and 1 in seen[2]
    assert sorted(number for batch in seen for number in batch) == list(range(4 * WANTED))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**32))
def test_whatever_the_order_each_lease_comes_once_and_no_token_is_too_old(
    max_staleness: int, iterations: int, max_concurrent: int, seed: int
) -> None:
    chance = random.Random(seed)
    workers = Writers(lambda lease: chance.random() < 0.3)
    source = stream(workers, max_staleness, iterations, max_concurrent=max_concurrent)
    seen: list[int] = []
    for done in range(iterations):
        workers.version = done
        batch = source.next(done)
        for _ in range(chance.randint(0, 4)):
            source.attend()
        seen += groups(batch.rollouts)
        for rollout in batch.rollouts:  # `next` itself raises if a token is too old
            assert done - max_staleness <= workers.began[rollout.lease_id] <= done
    assert sorted(seen) == list(range(WANTED * iterations))
    assert not workers.submitted  # nothing was written for nobody


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(0, 5), st.integers(0, 2**32))
def test_a_resumed_run_trains_on_each_prompt_once_under_the_same_numbers(
    max_staleness: int, stop: int, seed: int
) -> None:
    chance = random.Random(seed)
    prompt_of: dict[int, str] = {}

    def play(source: FinishedGroups, workers: Writers, first: int, last: int) -> list[int]:
        seen: list[int] = []
        for done in range(first, last):
            workers.version = done
            batch = source.next(done).rollouts
            source.attend()
            seen += groups(batch)
            for rollout in batch:
                assert prompt_of.setdefault(rollout.lease_id, rollout.prompt.id) == rollout.prompt.id
        return seen

    before, after = (Writers(lambda lease: chance.random() < 0.4) for _ in range(2))
    source = stream(before, max_staleness, 8)
    seen = play(source, before, 0, stop)
    state = dict(source.state())
    source.attend()  # and killed
    again = stream(after, max_staleness, 8)
    again.restore(state)
    seen += play(again, after, stop, 8)
    assert sorted(seen) == list(range(8 * WANTED))
    straight = leases().lease(8 * WANTED)
    assert prompt_of == {lease.id: lease.prompt.id for lease in straight}
    assert after.calls[0][0] != "cancel_all"


def test_texts_that_would_only_wait_for_their_turn_are_not_leased() -> None:
    """Two workers' worth of 8 texts and a quarter: 10 texts, three groups of 3."""
    workers = Writers(lambda lease: False)
    workers.num_up = 2
    source = stream(workers, max_staleness=4, max_concurrent=4)
    source.prepare(0)
    assert len(workers.submitted) == 3 * GROUP
    workers.is_ready = lambda lease: lease.group == 0
    source.attend()
    assert {lease.group for lease in workers.submitted} == {1, 2, 3}


def test_groups_that_teach_nothing_are_replaced_while_others_are_written() -> None:
    """Groups 0, 2, 4 … teach; the others earn one reward three times."""
    workers = Writers()
    rewards = Earned(lambda group, place: float(place == 0 and group % 2 == 0))
    source = stream(workers, rewards=rewards, algorithm=DAPO(max_refills=5))
    seen, leased = [], 0.0
    for done in range(4):
        workers.version = done
        batch = source.next(done)
        seen += groups(batch.rollouts)
        tally = source.describe(batch, 1.0)
        assert tally["refill/kept"] == WANTED and tally["refill/surplus"] == 0
        assert tally["refill/leased"] == tally["refill/kept"] + tally["refill/constant"]
        leased += tally["refill/leased"]
        source.attend()
    assert seen == list(range(0, 8 * WANTED, 2))
    assert 8 * WANTED - 1 <= leased <= 8 * WANTED + WANTED


def test_after_the_last_refill_it_trains_on_what_there_is_and_says_so() -> None:
    screen, workers = io.StringIO(), Writers()
    rewards = Earned(lambda group, place: float(place == 0 and group == 1))
    source = stream(workers, rewards=rewards, algorithm=DAPO(max_refills=2), screen=screen)
    assert groups(source.next(0).rollouts) == [1]
    assert "after 2 refills (algorithm.max_refills) a batch has 1 of 3 prompts" in screen.getvalue()


def test_a_refill_has_its_time_where_the_first_groups_teach_nothing() -> None:
    """Groups 0, 1 and 2 come first and teach nothing; one refill, of groups 3, 4 and 5, fills the batch."""

    class Late(Writers):
        def collect(self) -> list[Rollout]:
            rollouts = super().collect()
            self.is_ready = lambda lease: True
            return rollouts

    workers = Late(lambda lease: lease.group < 3)
    rewards = Earned(lambda group, place: float(place == 0 and group >= 3))
    source = stream(workers, rewards=rewards, algorithm=DAPO(max_refills=1))
    assert groups(source.next(0).rollouts) == [3, 4, 5]


def test_where_no_group_teaches_the_run_ends() -> None:
    source = stream(Writers(), rewards=Earned(lambda *_: 0.0), algorithm=DAPO(max_refills=2))
    with pytest.raises(RunError, match=r"iteration 1: none of \d+ prompts, .*\(all are 0\)"):
        source.next(0)


def test_the_lengths_of_overtaken_groups_are_told_and_no_length_is_preferred_in_the_end() -> None:
    class Long(Writers):
        """Texts of group 1 have four tokens and are slow; all others have two."""

        def collect(self) -> list[Rollout]:
            rollouts = super().collect()
            for rollout in rollouts:
                count = 4 if rollout.group == 1 else 2
                (turn,) = rollout.turns
                for name in ("tokens", "behavior_logprobs", "weight_versions"):
                    value = getattr(turn, name)
                    object.__setattr__(turn, name, (value * 4)[:count])
            return rollouts

    workers = Long(lambda lease: lease.group != 1 or workers.version == 2)
    source, ratios = stream(workers), []
    for done in range(3):
        workers.version = done
        metrics = source.describe(source.next(done), 1.0)
        ratios.append(metrics["order/length_ratio"])
    assert metrics["order/overtaken_share"] == pytest.approx(1 / 3)
    assert metrics["order/overtaken_length"] == 4 and metrics["order/other_length"] == 2
    assert ratios == [1.0, 1.0, pytest.approx(1.0, abs=0.2)]


# In the loop


def options(**rollout: Any) -> dict[str, Any]:
    wanted = {"prompts_per_iteration": 2, "max_tokens": 4, "max_staleness": 3, "order": "finished"}
    return {"rollout": wanted | rollout}


def test_after_a_stop_each_prompt_is_trained_on_once(tmp_path: Path) -> None:
    first = Loop(tmp_path, **options())
    first.stop_after(2)
    with pytest.raises(Interrupted):
        first.run()
    second = Loop(tmp_path, **options()).run()
    trained = first.learner.trained + second.learner.trained
    assert [len(batch) for batch in trained] == [2] * 4
    assert sorted(lease for batch in trained for lease in batch) == list(range(8))
    assert trained[0] != [0, 1]  # the fakes finish the newest lease first


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rollout": {"order": "finished"}}, r"order=finished with max_staleness=0: nothing is written"),
        (
            {"rollout": {"order": "finished", "max_staleness": 2, "deterministic": True}},
            "expected max_staleness=0, or deterministic=false",
        ),
        ({"rollout": {"order": "finished", "max_staleness": 2, "sleep": True}}, "expected sleep=false"),
    ],
)
def test_what_excludes_it_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_settings(**overrides)


def test_refills_go_with_it() -> None:
    rollout = {"order": "finished", "max_staleness": 2}
    assert run_settings(algorithm="dapo", rollout=rollout).algorithm.refills == 9
