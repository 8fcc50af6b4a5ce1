"""From leases to scored rollouts: nobody waits for ever, and failures are counted."""

import io
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest
from rich.console import Console as Terminal

from contracts.clients import Scoring
from contracts.errors import DeadlineExceeded, EpisodeError, InputError, RewardError, RunError
from contracts.rollout import FinishReason, Lease, Rollout, Sampling, Turn
from contracts.scores import Sample, Score
from services.config.reward_view import Judging
from services.runs.tracking.console import Console
from services.terminal.interrupts import Interrupted
from services.training.loop.collecting import Collected, Collector, FailureBudget
from tests.fakes import FakeRewards, FakeWorkers, prompts


def leases(count: int) -> list[Lease]:
    prompt = prompts(1)[0]
    return [Lease(n, prompt, (11,), n, 0, Sampling(max_tokens=4)) for n in range(count)]


def collected(
    rewards: FakeRewards,
    count: int = 4,
    failures: int = 10,
    check_stop: object = lambda: None,
    reward_timeout_s: float = 0.05,
) -> tuple[Collected, str]:
    screen = io.StringIO()
    console = Console(Terminal(file=screen, width=200))
    collect = Collector(
        FakeWorkers([]),
        rewards,
        FailureBudget(failures, 0),
        console,
        check_stop,  # type: ignore[arg-type]
        reward_timeout_s,
    )
    return collect(leases(count)), screen.getvalue()


def test_every_rollout_gets_its_own_score() -> None:
    batch, _ = collected(FakeRewards())

    by_lease = {rollout.lease_id: rollout for rollout in batch.rollouts}
    assert sorted(by_lease) == [0, 1, 2, 3]
    for lease_id, rollout in by_lease.items():
        assert [turn.reward for turn in rollout.turns] == [float(lease_id)]
        assert rollout.reward_parts == {"number": float(lease_id)}


def test_unscored_samples_are_left_out_counted_and_named() -> None:
    batch, screen = collected(FakeRewards(fails=lambda text: text == "text 2"))

    assert sorted(rollout.lease_id for rollout in batch.rollouts) == [0, 1, 3]
    assert batch.num_failed == 1
    assert "warning: prompt p/0 was not scored: no number to my liking" in screen


def test_over_the_limit_the_run_stops_and_shows_the_sample() -> None:
    with pytest.raises(RewardError) as stop:
        collected(FakeRewards(fails=lambda text: text in ("text 1", "text 2")), failures=1)

    assert str(stop.value) == (
        "2 rollouts were lost, more than reward_servers.max_failures=1. "
        "The last error: prompt p/0 was not scored: no number to my liking\nprompt: 'a'\ntext: 'text 1'"
    )


def test_scoring_begins_before_the_last_text_is_written() -> None:
    order: list[str] = []

    class Watched(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            order.extend(sample.text for sample in samples)
            return super().submit(samples)

    collected(Watched(), check_stop=lambda: order.append("look up"))

    assert order[:5] == ["look up", "look up", "text 3", "look up", "look up"]


def test_a_score_that_never_comes_ends_in_a_deadline() -> None:
    class Silent(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            return Future()

    with pytest.raises(DeadlineExceeded, match=r"for scores; raise reward_servers.default.timeout_s"):
        collected(Silent())


def test_slow_scores_are_told_about_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.training.loop.collecting.FIRST_NOTE_S", 0.01)

    class Slow(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            threading.Timer(0.3, lambda: future.set_result([Score(1.0) for _ in samples])).start()
            return future

        def scoring(self) -> Scoring:
            return Scoring(at_work={"own": 4})

    batch, screen = collected(Slow(), reward_timeout_s=60.0)

    assert len(batch.rollouts) == 4
    # after 0.01, 0.02, 0.04, 0.08, 0.16 s of the first text's scores; its friends' come at the same time
    assert 3 <= screen.count("for the scores of 1 texts: reward own is alive and has 4 texts left") <= 8
    assert "warning" not in screen  # slow is no fault


def test_a_lost_reward_is_a_warning_and_not_the_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.training.loop.collecting.FIRST_NOTE_S", 0.01)

    class Lost(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            threading.Timer(0.1, lambda: future.set_result([Score(1.0) for _ in samples])).start()
            return future

        def scoring(self) -> Scoring:
            return Scoring(at_work={"own": 4, "other": 1}, lost=("own",))

    _, screen = collected(Lost(), reward_timeout_s=60.0)

    status = "reward own lost a replica, which is being replaced; reward other is alive and has 1 texts left"
    assert f"the scores of 1 texts: {status}" in screen and "warning" in screen


def test_while_scores_come_in_their_deadline_starts_anew() -> None:
    """The scores take 0.3 s, and 0.05 s may pass without any of them."""

    class Steady(FakeRewards):
        num_answered = 0

        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            threading.Timer(0.3, lambda: future.set_result([Score(1.0) for _ in samples])).start()
            return future

        def scoring(self) -> Scoring:
            self.num_answered += 1
            return Scoring(self.num_answered)

    batch, _ = collected(Steady(), reward_timeout_s=0.15)
    assert len(batch.rollouts) == 4


def test_a_stop_is_noticed_while_texts_are_written() -> None:
    def stop() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        collected(FakeRewards(), check_stop=stop)


# Environments


GAME = Judging(at="never", environment="game", rewards_itself=True)


def game(lease: Lease) -> Rollout:
    """Two turns, rewarded with 1 and 2; of every third lease it fails."""
    if lease.id % 3 == 2:
        error = EpisodeError("its process died")
        return Rollout(lease.id, lease.group, lease.prompt, (), FinishReason.FAILED, error=error)
    turns = tuple(Turn((5,), (7, 1), "go", (-0.5, -1.0), (0, 0), reward) for reward in (1.0, 2.0))
    return Rollout(lease.id, lease.group, lease.prompt, turns, FinishReason.STOP)


class Games(FakeWorkers):
    """All at once; an environment is replaced twice meanwhile."""

    environment_restarts = 3

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        yield [game(lease) for lease in leases]
        self.environment_restarts += 2


class Unasked(FakeRewards):
    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        raise AssertionError("nobody judges here")


def played(
    judging: Judging, rewards: FakeRewards, failures: int = 10, games: type[Games] = Games
) -> tuple[Collected, str, FailureBudget]:
    screen = io.StringIO()
    console, budget = Console(Terminal(file=screen, width=200)), FailureBudget(0, failures)
    collect = Collector(games([]), rewards, budget, console, lambda: None, 1.0, judging)
    return collect(leases(6)), screen.getvalue(), budget


def test_failed_episodes_are_counted_and_named_but_never_scored_or_trained_on() -> None:
    batch, screen, spent = played(GAME, Unasked())

    assert [rollout.lease_id for rollout in batch.rollouts] == [0, 1, 3, 4]
    assert (batch.num_failed, batch.num_environment_failed) == (0, 2)
    assert (spent.num_unscored, spent.num_unplayed) == (0, 2)
    assert screen.count("warning: prompt p/0 failed in environment=game: its process died") == 2
    assert batch.num_environment_restarts == 2
    assert [rollout.reward_parts for rollout in batch.rollouts] == [{"environment": 3.0}] * 4


def test_too_many_failed_episodes_end_the_run() -> None:
    with pytest.raises(EpisodeError) as stop:
        played(GAME, Unasked(), failures=1)

    assert str(stop.value) == (
        "2 episodes were lost, more than environment.max_failures=1. "
        "The last error: prompt p/0 failed in environment=game: its process died"
    )


class Misread(Games):
    """A failure is the user's doing."""

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        for rollouts in super().generate(leases):
            yield [
                replace(rollout, error=InputError("no such game")) if rollout.error else rollout
                for rollout in rollouts
            ]


def test_too_many_episodes_that_the_user_can_mend_are_wrong_input() -> None:
    with pytest.raises(InputError, match=r"environment\.max_failures=1\. The last error: .* no such game"):
        played(GAME, Unasked(), failures=1, games=Misread)
    _, _, budget = played(GAME, Unasked(), failures=2, games=Misread)
    assert type(budget.nothing_left("none of 2")) is InputError


def test_where_everything_was_lost_the_last_loss_is_told() -> None:
    assert str(FailureBudget(0, 0).nothing_left("none of 2 texts")) == "none of 2 texts"
    _, _, budget = played(GAME, Unasked())
    error = budget.nothing_left("none of 2 texts")
    assert type(error) is RunError
    assert str(error).startswith("none of 2 texts. The last error: prompt p/0 failed in environment=game: ")


def test_the_two_limits_are_counted_apart() -> None:
    """Two episodes fail within their own limit of two, and not one text goes unscored."""
    played(GAME, Unasked(), failures=2)
    with pytest.raises(RewardError, match=r"1 rollouts were lost, more than reward_servers\.max_failures=0"):
        played(Judging(environment="game"), FakeRewards(fails=lambda text: True))


def test_each_rollout_gets_back_the_scores_of_its_own_turns() -> None:
    """A sample is worth its place in the call: of four rollouts with two turns each, 0 to 7."""

    class Counting(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            future.set_result([Score(float(n), {"place": float(n)}) for n in range(len(samples))])
            return future

    batch, _, _ = played(Judging(at="turn", environment="game", rewards_itself=True), Counting())

    rewards = {rollout.lease_id: [turn.reward for turn in rollout.turns] for rollout in batch.rollouts}
    assert rewards == {0: [1 + 0, 2 + 1], 1: [1 + 2, 2 + 3], 3: [1 + 4, 2 + 5], 4: [1 + 6, 2 + 7]}
    assert batch.rollouts[1].reward_parts == {"environment": 3.0, "place": 5.0}


def test_one_unscored_turn_leaves_the_whole_rollout_out() -> None:
    class SecondFails(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            scores = [Score(1.0) for _ in samples]
            scores[1] = Score(None, error="no")
            future.set_result(scores)
            return future

    screen = Console(Terminal(file=io.StringIO()))
    judging, budget = Judging(at="turn", environment="game"), FailureBudget(1, 2)
    batch = Collector(Games([]), SecondFails(), budget, screen, lambda: None, 1.0, judging)(leases(6))

    assert [rollout.lease_id for rollout in batch.rollouts] == [1, 3, 4]
    assert (batch.num_failed, batch.num_environment_failed) == (1, 2)
