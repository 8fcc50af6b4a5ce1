"""Writing ahead: how far, in which order, and that nothing is lost or trained on twice."""

import io
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console as Terminal

from contracts.errors import InputError, RunError
from contracts.rollout import Rollout, Sampling
from contracts.scores import Sample, Score
from contracts.settings import build
from services.config.settings import RunSettings
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.tracking.console import Console
from services.terminal.interrupts import Interrupted
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.rollout_stream import RolloutStream
from services.training.preflight.preflight import check
from services.training.sources.leasing import LeaseSource
from tests.fakes import FakeRewards, FakeWorkers, WordTokens, prompts
from tests.lease_log import expected
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.services.training.loop.test_controller import Loop


def source(num_prompts: int = 5) -> LeaseSource:
    return LeaseSource(
        prompts(num_prompts), PromptTokens(WordTokens()), Sampling(max_tokens=4), group_size=2, seed=0
    )


def stream(workers: FakeWorkers, max_staleness: int, **options: Any) -> RolloutStream:
    budget = FailureBudget(0, 0)
    console = Console(Terminal(file=io.StringIO()))
    rewards, patience_s = options.pop("rewards", FakeRewards()), options.pop("patience_s", 10.0)
    arguments: dict[str, Any] = {"iterations": 9} | options
    collector = Collector(workers, rewards, budget, console, lambda: None, patience_s)
    return RolloutStream(source(), 3, collector, workers, (), max_staleness=max_staleness, **arguments)


def ids(rollouts: Sequence[Rollout]) -> list[int]:
    return sorted(rollout.lease_id for rollout in rollouts)


def test_it_leases_whole_iterations_as_far_ahead_as_allowed_and_none_beyond_the_last() -> None:
    workers = FakeWorkers([])
    workers.version = 0
    ahead = stream(workers, max_staleness=2, iterations=4)

    assert ids(ahead.next(0).rollouts) == [0, 1, 2, 3, 4, 5]
    assert [name for name, _ in workers.calls] == ["submit"] * 3
    ahead.prepare(1)
    assert workers.calls[-1] == ("submit", [18, 19, 20, 21, 22, 23])
    ahead.prepare(2)
    assert len(workers.calls) == 4  # the fourth iteration is the last


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**32))
def test_whatever_the_order_no_token_is_too_old_and_each_lease_comes_once(
    max_staleness: int, iterations: int, seed: int
) -> None:
    class AnyOrder(FakeWorkers):
        def collect(self) -> list[Rollout]:
            chance.shuffle(self.submitted)
            return [
                rollout for _ in range(chance.randint(0, 4)) for rollout in super(AnyOrder, self).collect()
            ]

    chance = random.Random(seed)
    workers = AnyOrder([])
    ahead = stream(workers, max_staleness, iterations=iterations)
    seen: list[int] = []
    for done in range(iterations):
        workers.version = done
        batch = ahead.next(done)
        ahead.attend()
        seen += ids(batch.rollouts)
        oldest = min(v for rollout in batch.rollouts for v in rollout.turns[0].weight_versions)
        assert done - oldest <= max_staleness
    assert seen == list(range(6 * iterations))


def test_the_state_is_that_before_what_is_not_trained_on() -> None:
    workers = FakeWorkers([])
    workers.version = 0
    ahead = stream(workers, max_staleness=3)
    ahead.next(0)
    state = ahead.state()

    again = source()
    again.restore(state)
    assert [lease.id for lease in again.lease(3)] == [6, 7, 8, 9, 10, 11]

    ahead.restore(state)
    assert workers.calls[-1][0] == "cancel_all" and not workers.submitted


def test_a_token_that_is_too_old_is_a_fault_of_ours() -> None:
    workers = FakeWorkers([])
    workers.version = 0
    ahead = stream(workers, max_staleness=1)
    for done in range(2):
        ahead.next(done)
    with pytest.raises(RunError, match=r"tokens by weights of versions 0 to 0, but those to train are of 2"):
        ahead.next(2)


def test_a_token_of_weights_that_were_given_up_is_one_too() -> None:
    workers = FakeWorkers([])
    workers.version = 6
    with pytest.raises(RunError, match=r"versions 6 to 6, but those to train are of 4; expected none newer"):
        stream(workers, max_staleness=1).next(4)


def test_a_queue_of_scores_that_moves_is_waited_for() -> None:
    class OneByOne(FakeRewards):
        """One call's scores come every 0.2 s: each in time, all of them after more than patience lasts."""

        def __init__(self) -> None:
            super().__init__()
            self.last = time.monotonic()

        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            self.last = max(self.last, time.monotonic()) + 0.2
            scores = [self._score(sample.text) for sample in samples]
            threading.Timer(self.last - time.monotonic(), future.set_result, [scores]).start()
            return future

    workers = FakeWorkers([])
    workers.version = 0
    batch = stream(workers, 1, rewards=OneByOne(), patience_s=0.6).next(0)
    assert len(batch.rollouts) == 6 and batch.reward_s > 0.6


# In the loop


def options(max_staleness: int = 1) -> dict[str, Any]:
    return {"rollout": {"prompts_per_iteration": 2, "max_tokens": 4, "max_staleness": max_staleness}}


def test_a_run_ahead_trains_on_every_prompt_once_and_evaluates_by_one_version(tmp_path: Path) -> None:
    loop = Loop(tmp_path, **options()).run()

    assert [sorted(batch) for batch in loop.learner.trained] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    submits = [argument for name, argument in loop.calls if name == "submit"]
    assert submits == [[0, 1], [2, 3], [4, 5], [6, 7]]
    first_update = next(i for i, (name, _) in enumerate(loop.calls) if name == "update")
    assert loop.calls.index(("submit", [2, 3])) < first_update < loop.calls.index(("submit", [4, 5]))


def test_what_was_under_way_is_leased_again_after_a_stop(tmp_path: Path) -> None:
    first = Loop(tmp_path, **options(3))
    first.stop_after(2)
    with pytest.raises(Interrupted):
        first.run()
    assert first.learner.trained == [[0, 1], [2, 3]]

    second = Loop(tmp_path, **options(3)).run()
    assert second.learner.trained == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"algorithm": "nlpo"}, "the mask may change while a text is written"),
        ({"algorithm": "supervised"}, "no texts are written ahead"),
        (
            {"model": {"path": "none", "adapter": {"kind": "lora", "serve": "adapter"}}},
            "keeps its first adapter",
        ),
    ],
)
def test_where_it_would_be_wrong_it_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(run_settings(**overrides, rollout={"max_staleness": 2}))


def test_a_deterministic_run_leaves_nothing_to_timing() -> None:
    with pytest.raises(InputError, match="expected max_staleness=0, or deterministic=false"):
        run_settings(rollout={"max_staleness": 1, "deterministic": True})


def run_settings(**overrides: Any) -> RunSettings:
    return build(
        RunSettings,
        {"algorithm": "ppo", "task": "increasing_numbers", "model": {"path": "none"}} | overrides,
        where="",
    )


# With a real engine, a real learner


def test_what_was_written_ahead_is_told_from_what_is_fresh(tmp_path: Path) -> None:
    """By how old it is, and by how much likelier or not the learner finds it."""
    overrides = {
        "model": {"path": str(make_tiny_model(tmp_path / "model"))},
        "task": {"name": "increasing_numbers", "num_prompts": 64, "num_eval_prompts": 2},
        "rollout": {"prompts_per_iteration": 48, "max_tokens": 60, "max_staleness": 2, "num_threads": 1},
        "learner": {"num_threads": 1},
        "algorithm": {"name": "ppo", "learning_rate": 1e-3, "num_epochs": 1, "minibatch_size": None},
        "measures": ["tests.lease_log:Leases"],
        "metrics": [],
        "iterations": 6,
        "evaluate_every": 0,
        "tracking": {"enabled": False},
        "output_dir": str(tmp_path / "runs"),
    }
    rows = train_here(run_settings(**overrides)).rollout_info()

    for row in rows:
        assert row.items() >= expected(row["iteration"], 48).items()
        assert row["staleness/mean"] <= row["staleness/max"] <= 2
    assert any(row["staleness/max"] > 0 for row in rows)
    fresh = [row["mismatch/max_ratio"] for row in rows if not row["staleness/max"]]
    stale = [row["mismatch/max_ratio"] for row in rows if row["staleness/max"]]
    assert max(fresh) < 1 + 1e-4 < max(stale)
