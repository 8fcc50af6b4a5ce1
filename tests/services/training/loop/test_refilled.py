"""Dynamic sampling: batches are full, every leased prompt is accounted for, and nothing depends on chance."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console as Terminal

from contracts.errors import RunError
from contracts.rollout import Sampling
from contracts.scores import Sample, Score
from learner.algorithms.dapo import DAPO
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.refilled import Refilled, Tally
from services.training.sources.leasing import LeaseSource
from tests.fakes import FakeRewards, FakeWorkers, WordTokens, prompts

WANTED, GROUP = 4, 3


class Earned(FakeRewards):
    """Rewards by group and place in it, as a function says; a lease's number is its text's."""

    def __init__(self, earned: Callable[[int, int], float | None]) -> None:
        super().__init__()
        self.earned = earned

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        future: Future[list[Score]] = Future()
        future.set_result([self._of(int(sample.text.split()[-1])) for sample in samples])
        return future

    def _of(self, lease: int) -> Score:
        total = self.earned(*divmod(lease, GROUP))
        return Score(total, {"number": total}) if total is not None else Score(None, error="lost")


class Source:
    """A source over fakes; `batches` plays iterations."""

    def __init__(
        self, earned: Callable[[int, int], float | None], max_refills: int = 9, **budget: int
    ) -> None:
        self.workers, self.screen = FakeWorkers([]), io.StringIO()
        self.prompts = LeaseSource(
            prompts(5), PromptTokens(WordTokens()), Sampling(max_tokens=4), group_size=GROUP, seed=0
        )
        collector = Collector(
            self.workers,
            Earned(earned),
            FailureBudget(budget.get("max_unscored", 0), 0),
            Console(Terminal(file=self.screen, width=400)),
            lambda: None,
            10.0,
        )
        self.source = Refilled(
            self.prompts, WANTED, collector, self.workers, (), DAPO(max_refills=max_refills)
        )

    def batches(self, count: int) -> list[list[int]]:
        return [sorted({one.group for one in self.source.next(done).rollouts}) for done in range(count)]

    @property
    def leased_by_round(self) -> list[int]:
        """How many prompts each round has leased."""
        return [len(ids) // GROUP for _, ids in self.workers.calls]  # type: ignore[arg-type]

    def account(self) -> dict[str, float]:
        metrics = self.source.describe(self.source.next(0), 1.0)
        return {key.removeprefix("refill/"): value for key, value in metrics.items() if "refill" in key}


def every_other(group: int, place: int) -> float:
    """Prompts 0, 2, 4 … teach; the others are never solved."""
    return float(place == 0 and group % 2 == 0)


def test_a_batch_is_filled_with_the_next_prompts() -> None:
    """Two of 0 … 3 teach; four more at that rate; two of 4 … 7 again."""
    source = Source(every_other)
    assert source.batches(2) == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert source.leased_by_round == [4, 4, 4, 4]
    assert source.workers.calls[0] == ("generate", list(range(12)))
    assert source.workers.calls[1] == ("generate", list(range(12, 24)))


def test_where_all_teach_there_is_one_round_as_ever() -> None:
    source = Source(lambda group, place: float(place))
    assert source.batches(2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert source.leased_by_round == [4, 4]


def test_the_account_is_exact() -> None:
    """Round 0: 0, 1, 2 teach of 0 … 3. One is missing, at 3 in 4: two more are leased, both teach."""
    account = Source(lambda group, place: float(place == 0 and group != 3)).account()
    assert account == {
        "rounds": 2,
        "leased": 6,
        "kept": 4,
        "constant": 1,
        "surplus": 1,
        "lost": 0,
        "full_share": 1,
        "reward_mean": pytest.approx(5 / 18),
    }


def test_a_lost_response_leaves_its_group_and_a_lost_group_is_counted() -> None:
    def earned(group: int, place: int) -> float | None:
        return None if group == 0 or (group == 1 and place) else float(place)

    source = Source(earned, max_unscored=99)
    batch = source.source.next(0)
    assert sorted({one.group for one in batch.rollouts}) == [2, 3, 4, 5]
    assert batch.num_failed == 5
    metrics = source.source.describe(batch, 1.0)
    assert (metrics["refill/lost"], metrics["refill/constant"]) == (1, 1)  # one response alone has no peer


def test_at_the_bound_it_trains_on_what_there_is_and_says_so_once() -> None:
    source = Source(lambda group, place: float(place == 0 and group in (1, 13)), max_refills=2)
    assert source.batches(2) == [[1], [13]]
    assert source.leased_by_round == [4, 4, 4] * 2
    printed = source.screen.getvalue()
    assert printed.count("algorithm.max_refills") == 1
    assert "after 2 refills (algorithm.max_refills) a batch has 1 of 4 prompts: of 12 leased, 11" in printed


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda group, place: 0.0, r"none of 12 prompts, in 3 rounds, .* \(all are 0\)"),
        (lambda group, place: float(group % 2), r"\(they go from 0 to 1\), so there is nothing to learn"),
    ],
)
def test_empty_rounds_end_the_run(reward: Any, message: str) -> None:
    with pytest.raises(RunError, match=r"iteration 1: .*" + message):
        Source(reward, max_refills=2).batches(1)


def test_where_nothing_is_scored_the_loss_is_told() -> None:
    with pytest.raises(RunError, match=r"none of .* rollouts could be scored"):
        Source(lambda group, place: None, max_refills=1, max_unscored=99).batches(1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.floats(0.1, 1), st.integers(1, 5))
def test_whatever_is_earned_the_account_balances_and_a_resumed_run_leases_the_same(
    seed: int, rate: float, stop: int
) -> None:
    def earned(group: int, place: int) -> float:
        teaches = (group * 2654435761 + seed) % 1000 < 1000 * rate
        return float(place == 0 and teaches)

    def iteration(source: Source, done: int) -> tuple[list[int], dict[str, float]]:
        try:
            batch = source.source.next(done)
        except RunError:
            return [], {}
        return sorted(one.lease_id for one in batch.rollouts), source.source.describe(batch, 1.0)

    whole = Source(earned)
    seen, states = [], []
    for done in range(6):
        states.append(whole.source.state())
        seen.append(iteration(whole, done))
    leased = [lease for _, ids in whole.workers.calls for lease in ids]  # type: ignore[attr-defined]
    assert leased == list(range(len(leased)))  # each id once, in order
    for kept, metrics in seen:
        if metrics:
            parts = sum(metrics[f"refill/{name}"] for name in ("kept", "constant", "surplus", "lost"))
            assert parts == metrics["refill/leased"]
            assert len(kept) == GROUP * metrics["refill/kept"]
            assert metrics["refill/kept"] == WANTED or metrics["refill/rounds"] == 10
    again = Source(earned)
    again.source.restore(states[stop])
    resumed = [iteration(again, done) for done in range(stop, 6)]
    without_times = [(kept, {k: v for k, v in m.items() if "refill" in k}) for kept, m in resumed]
    assert without_times == [(kept, {k: v for k, v in m.items() if "refill" in k}) for kept, m in seen[stop:]]


@given(st.integers(1, 64), st.integers(0, 64), st.integers(0, 640))
def test_a_round_asks_at_most_an_iterations_prompts_and_at_least_what_is_missing(
    wanted: int, kept: int, more: int
) -> None:
    tally = Tally(wanted, kept=min(kept, wanted - 1), leased=kept + more)
    if tally.leased >= tally.kept:
        assert tally.missing <= tally.next_round <= wanted
