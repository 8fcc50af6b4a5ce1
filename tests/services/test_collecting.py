"""From leases to scored rollouts: nobody waits for ever, and failures are counted."""

import io
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from rich.console import Console as Terminal

from contracts.errors import DeadlineExceeded, RewardError
from contracts.rollout import Lease, Sampling
from contracts.scores import Sample, Score
from services.collecting import Collected, Collector, FailureBudget
from services.console import Console
from services.interrupts import Interrupted
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
        FailureBudget(failures),
        console,
        check_stop,  # type: ignore[arg-type]
        reward_timeout_s,
    )
    return collect(leases(count)), screen.getvalue()


def test_every_rollout_gets_its_own_score_at_its_last_token() -> None:
    found, _ = collected(FakeRewards())

    by_lease = {rollout.lease_id: rollout for rollout in found.rollouts}
    assert sorted(by_lease) == [0, 1, 2, 3]
    for lease_id, rollout in by_lease.items():
        assert rollout.token_rewards == (0.0, 0.0, float(lease_id))
        assert rollout.reward_parts == {"number": float(lease_id)}


def test_unscored_samples_are_left_out_counted_and_named() -> None:
    found, screen = collected(FakeRewards(fails=lambda text: text == "text 2"))

    assert sorted(rollout.lease_id for rollout in found.rollouts) == [0, 1, 3]
    assert found.num_failed == 1
    assert "warning: prompt p/0 was not scored: no number to my liking" in screen


def test_over_the_limit_the_run_stops_and_shows_the_sample() -> None:
    with pytest.raises(RewardError) as stop:
        collected(FakeRewards(fails=lambda text: text in ("text 1", "text 2")), failures=1)

    assert str(stop.value) == (
        "2 samples could not be scored, more than reward_servers.max_failures=1. "
        "The last one, prompt p/0: no number to my liking\nprompt: 'a'\ntext: 'text 1'"
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

    with pytest.raises(DeadlineExceeded, match=r"for scores; reward_servers.default.timeout_s="):
        collected(Silent())


def test_slow_scores_are_told_about_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.collecting.FIRST_NOTE_S", 0.01)

    class Slow(FakeRewards):
        def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
            future: Future[list[Score]] = Future()
            threading.Timer(0.3, lambda: future.set_result([Score(1.0) for _ in samples])).start()
            return future

    found, screen = collected(Slow(), reward_timeout_s=60.0)

    assert len(found.rollouts) == 4
    # after 0.01, 0.02, 0.04, 0.08, 0.16 s of the first text's scores; its friends' come at the same time
    assert 3 <= screen.count("for the scores of 1 texts: a reward server is slow, or died") <= 8


def test_a_stop_is_noticed_while_texts_are_written() -> None:
    def stop() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        collected(FakeRewards(), check_stop=stop)
