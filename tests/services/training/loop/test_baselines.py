"""Baselines that play: the same prompts and seeds, names of their own, at no cost to the run."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console as Terminal

from contracts.errors import InputError
from contracts.rollout import FinishReason, Lease, Rollout, Sampling, Turn
from services.config.reward_view import Judging
from services.runs.player_metrics import of_player
from services.runs.report.transcripts import shown_turns
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collected, Collector, FailureBudget
from services.training.loop.evaluations.baselines import baselines, played_by, summary
from services.training.loop.evaluations.evaluation import evaluate, how_it_ended, play_statistics, transcript
from tests.fakes import FakeRewards, FakeWorkers, prompts

WORTH = {"model": 1.0, "random": 0.25, "expert": 2.0}


def leases(count: int) -> list[Lease]:
    prompt = prompts(1)[0]
    return [Lease(n, prompt, (11,), n, n, Sampling(max_tokens=4)) for n in range(count)]


class Players(FakeWorkers):
    """Each player is worth something; one that is not there fails."""

    absent = ""

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        for lease in leases:
            player = lease.sampling.player
            self.calls.append((player, lease.seed))
            turn = Turn((5,), (7, 1), "go", (-0.5, -1.0), (0, 0), WORTH[player])
            played = Rollout(lease.id, lease.group, lease.prompt, (turn, turn), FinishReason.STOP, info=WON)
            error = InputError("no expert")
            hole = Rollout(lease.id, lease.group, lease.prompt, (), FinishReason.FAILED, error=error)
            yield [hole if player == self.absent else played]


WON = {"won": 1.0}
GAME = Judging(at="never", environment="game", rewards_itself=True)


def collector(workers: FakeWorkers, budget: FailureBudget) -> Collector:
    console = Console(Terminal(file=io.StringIO()))
    return Collector(workers, FakeRewards(), budget, console, lambda: None, 1.0, GAME)


def test_others_play_the_same_prompts_with_the_same_seeds() -> None:
    workers = Players([])
    metrics = baselines("validation", leases(2), collector(workers, FailureBudget(0, 0)))

    assert workers.calls == [("random", 0), ("random", 1), ("expert", 0), ("expert", 1)]
    # two turns an episode
    assert (metrics["baseline/random/reward/mean"], metrics["baseline/expert/reward/mean"]) == (0.5, 4.0)
    assert metrics["baseline/expert/environment/won/mean"] == 1.0
    assert of_player("random", metrics)["turns/mean"] == 2.0


def test_only_the_sampling_of_a_lease_changes() -> None:
    (mine,) = leases(1)
    assert played_by("expert", [mine]) == [replace(mine, sampling=Sampling(max_tokens=4, player="expert"))]


def test_a_baseline_that_nobody_can_play_spends_nothing_of_the_runs() -> None:
    workers, budget = Players([]), FailureBudget(0, 0)
    workers.absent = "expert"
    metrics = baselines("validation", leases(3), collector(workers, budget))

    assert budget.num_unplayed == 0
    assert metrics["baseline/expert/environment/failed"] == 3.0
    assert "baseline/expert/reward/mean" not in metrics
    assert summary(metrics) == "random: reward/mean 0.5, environment/won/mean 1; expert: could not play"


def test_what_an_environment_measured_by_hand() -> None:
    """One won after two turns, one cut off after one; only the first was scored by its game."""
    turn = Turn((5,), (7, 1), "go", (-0.5, -1.0), (0, 0), 1.0)
    prompt = prompts(1)[0]
    won = Rollout(0, 0, prompt, (turn, turn), FinishReason.STOP, info={"won": 1.0, "score": 0.5})
    cut = Rollout(
        1, 1, prompt, (turn,), FinishReason.LENGTH, info={"won": 0.0}, truncated_context=(5, 7, 1, 5)
    )

    collected = Collected([won, cut], num_environment_failed=2, num_environment_restarts=3)
    assert play_statistics(collected) == {
        "environment/failed": 2.0,
        "environment/restarts": 3.0,
        "environment/won/mean": 0.5,
        "environment/score/mean": 0.5,
        "turns/mean": 1.5,
        "finish/cut": 0.5,
    }
    nothing = {"environment/failed": 1.0, "environment/restarts": 0.0}
    assert play_statistics(Collected(num_environment_failed=1)) == nothing
    assert [how_it_ended(rollout) for rollout in (won, cut)] == ["won", "cut"]
    of_turns = replace(cut, finish_reason=FinishReason.CUT)  # by environment.max_turns
    assert play_statistics(Collected([won, of_turns]))["finish/cut"] == 0.5
    assert how_it_ended(of_turns) == "cut"
    assert how_it_ended(replace(cut, info={"lost": 1.0})) == "lost"
    assert how_it_ended(replace(won, info={})) == "ended"


def test_a_transcript_begins_with_the_prompt_where_the_world_says_nothing_of_its_own() -> None:
    turn = Turn((5,), (7, 1), "go", (-0.5, -1.0), (0, 0), 1.0, observation_text="Where to?")
    rollout = Rollout(0, 0, prompts(1)[0], (replace(turn, observation_text=""), turn), FinishReason.STOP)

    assert transcript(rollout)["turns"] == [
        {"observation": "a", "answer": "go", "reward": 1.0, "read": 1, "written": 2, "fresh": False},
        {"observation": "Where to?", "answer": "go", "reward": 1.0, "read": 1, "written": 2, "fresh": False},
    ]


def test_a_transcript_numbers_the_sequences_of_an_agents_calls() -> None:
    call = Turn((5,), (7, 1), "go", (-0.5, -1.0), (0, 0), 1.0, fresh=True, observation_text="Where to?")
    turns = (call, replace(call, fresh=False), call)
    rollout = Rollout(0, 0, prompts(1)[0], turns, FinishReason.STOP, info={"sequences": 2.0})
    assert [turn["sequence"] for turn in transcript(rollout)["turns"]] == [1, 1, 2]


def test_a_transcript_names_the_policys_roles() -> None:
    turns = tuple(
        Turn((5,), (7,), role or "none", (0.0,), (0,), fresh=True, role=role) for role in ("pro", "")
    )
    rows = transcript(Rollout(0, 0, prompts(1)[0], turns, FinishReason.STOP))["turns"]
    assert [turn.get("role") for turn in rows] == ["pro", None]
    assert [turn.role for turn in shown_turns(rows)] == ["pro", ""]


def test_only_episodes_have_transcripts() -> None:
    collect = collector(Players([]), FailureBudget(0, 0))
    played = evaluate("validation", leases(1), collect)
    plain = evaluate("validation", leases(1), replace(collect, judging=Judging(at="never")))

    assert "turns" in played.rows[0] and "turns/mean" in played.metrics
    assert "turns" not in plain.rows[0] and "turns/mean" not in plain.metrics


def test_environments_that_are_replaced_during_an_evaluation_are_counted() -> None:
    class Dying(Players):
        def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
            yield from super().generate(leases)
            self.environment_restarts += 2

    collect = collector(Dying([]), FailureBudget(0, 0))
    assert evaluate("test", leases(2), collect).metrics["environment/restarts"] == 2.0
    processed = evaluate("test", leases(2), collect, post_process=str.strip)
    assert processed.metrics["environment/restarts"] == 2.0
    assert baselines("test", leases(2), collect)["baseline/random/environment/restarts"] == 2.0
