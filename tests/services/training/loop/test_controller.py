"""The loop with plain clients: the order of calls, what is saved when, and that a resume loses nothing."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from contracts.errors import DiskFull, LearnerError, LearnerFailed, LearnerLost, RewardError, RunError
from contracts.rollout import Lease, Sampling
from contracts.settings import build
from services.config.post_processing import find_post_processor
from services.config.reward_view import with_score
from services.config.settings import RunSettings
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs import checkpoints
from services.runs.folder import RunFolder
from services.runs.stopping.stopping import Stopping
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import Interrupted, StopRequest
from services.training.loop.collecting import Collected, Collector, FailureBudget
from services.training.loop.controller import Clients
from services.training.loop.evaluations.evaluator import Evaluator
from services.training.loop.journal import Journal
from services.training.loop.requests import RunRequests
from services.training.loop.scaling import Scaling
from services.training.loop.statistics.iteration_info import rollout_info, training_info
from services.training.sources.leasing import EVALUATION, LeaseSource, evaluation_leases
from services.training.train.loop import Assembly
from tests.fakes import Calls, FakeLearner, FakeRewards, FakeWorkers, WordTokens, prompts, rollout_of

VALIDATION, TEST = [EVALUATION, EVALUATION + 1], [EVALUATION]


class Loop:
    """A controller on a folder, with fresh clients as after a new start."""

    def __init__(
        self,
        folder: Path,
        fails: Callable[[str], bool] = lambda text: False,
        rewards: FakeRewards | None = None,
        **options: Any,
    ) -> None:
        defaults = {
            "algorithm": "ppo",
            "task": "increasing_numbers",
            "model": {"path": "none"},
            "output_dir": str(folder),
            "run_name": "run",
            "iterations": 4,
            "evaluate_every": 2,
            "save_every": 2,
            "rollout": {"prompts_per_iteration": 2, "max_tokens": 4},
            "tracking": {"enabled": False},
        }
        self.settings = build(RunSettings, defaults | options, where="")
        self.folder = RunFolder.open(folder, "run", config=self.settings.resolved(), resume="auto")
        self.calls: Calls = []
        self.workers, self.learner = FakeWorkers(self.calls), FakeLearner(self.calls)
        self.screen = io.StringIO()
        self.stop = StopRequest()
        self.rewards = FakeRewards(fails) if rewards is None else rewards
        clients = Clients(self.workers, self.rewards, self.learner)
        console = Console(Terminal(file=self.screen, width=200))
        journal = Journal(
            self.folder,
            Tracker.start(self.settings.tracking, folder, "run"),
            console,
            stopping=Stopping(self.settings.stop_when),
        )
        tokens, sampling = PromptTokens(WordTokens()), Sampling(max_tokens=4)
        held_out = {
            split: evaluation_leases(prompts(count), tokens, sampling, samples=1, seed=0)
            for split, count in (("validation", 2), ("test", 1))
        }
        requests = RunRequests(self.stop, Scaling(self.folder.path, self.workers, console.note))
        failures = FailureBudget(
            self.settings.reward_servers.max_failures, self.settings.environment.max_failures
        )
        collector = Collector(
            self.workers,
            self.rewards,
            failures,
            console,
            requests.look,
            self.settings.reward_patience_s,
            self.settings.judging,
        )
        assembly = Assembly(self.settings, clients, collector)
        leases = LeaseSource(prompts(5), tokens, sampling, group_size=1, seed=3)
        source = assembly.prompted(leases, self.settings.rollout.prompts_per_iteration)
        post_process = find_post_processor(self.settings.evaluation.post_processor)
        evaluator = Evaluator(held_out, collector, post_process)
        self.controller = assembly.controller(source, evaluator, journal, requests)

    def run(self) -> "Loop":
        self.controller.run()
        return self

    def stop_after(self, num_updates: int) -> None:
        """Ask for a stop, as a signal would, within the n-th update."""
        update = self.learner.update

        def then_stop(*arguments: Any) -> dict[str, float]:
            metrics = update(*arguments)
            if len(self.learner.trained) == num_updates:
                self.stop._is_asked = True
            return metrics

        self.learner.update = then_stop  # type: ignore[method-assign]

    def stop_at(self, lease_id: int, occurrence: int = 1) -> None:
        """Ask for a stop, as a signal would, when this lease is generated for the n-th time."""
        seen = 0

        def before(lease: Lease) -> None:
            nonlocal seen
            seen += lease.id == lease_id
            if lease.id == lease_id and seen == occurrence:
                self.stop._ask(15, None)

        self.workers.before_each = before


def rows(loop: Loop) -> list[int]:
    return [row["iteration"] for row in loop.folder.rollout_info()]


def epochs(loop: Loop, split: str) -> list[int]:
    """As the file has them: an evaluation made twice would show."""
    name = {"validation": "val"}.get(split, split)
    lines = (loop.folder.path / f"{name}_split_metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


@pytest.fixture(autouse=True)
def _python_keeps_its_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)


def test_the_whole_run_call_by_call(tmp_path: Path) -> None:
    loop = Loop(tmp_path, iterations=3).run()

    assert loop.calls == [
        ("publish", 0),
        ("load_weights", 0),
        ("generate", VALIDATION),
        ("generate", TEST),
        ("generate", [0, 1]),
        ("update", [0, 1]),
        ("publish", 1),
        ("load_weights", 1),
        ("generate", [2, 3]),
        ("update", [2, 3]),
        ("publish", 2),
        ("load_weights", 2),
        ("generate", VALIDATION),
        ("save", 2),
        ("generate", [4, 5]),
        ("update", [4, 5]),
        ("publish", 3),
        ("load_weights", 3),
        ("generate", VALIDATION),
        ("generate", TEST),
        ("save", 3),
        ("export", 3),
    ]
    assert rows(loop) == [1, 2, 3]
    assert (loop.folder.model / "config.json").exists()
    assert list(loop.folder.checkpoints()) == [2, 3]


def test_a_run_without_evaluations_makes_none(tmp_path: Path) -> None:
    loop = Loop(tmp_path, iterations=3, evaluate_every="never").run()

    assert [call for call in loop.calls if call[0] == "generate"] == [
        ("generate", [0, 1]),
        ("generate", [2, 3]),
        ("generate", [4, 5]),
    ]
    assert loop.calls[-2:] == [("save", 3), ("export", 3)]
    assert not list(loop.folder.path.glob("*_split_metrics.jsonl"))


def test_every_rollout_is_written_by_the_weights_that_it_trains(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    seen: list[tuple[int, int]] = []
    loop.workers.before_each = lambda lease: seen.append((loop.workers.version, loop.learner.version))
    loop.run()

    assert all(workers == learner for workers, learner in seen)


@pytest.mark.parametrize("lease_id", [2, 3, 5])  # the middle of iteration 2, its first, that of iteration 3
def test_a_stop_saves_the_last_whole_iteration_and_the_rest_is_as_if_nothing_had_been(
    tmp_path: Path, lease_id: int
) -> None:
    whole = Loop(tmp_path / "whole", save_every=0).run()
    stopped = Loop(tmp_path / "stopped", save_every=0)
    stopped.stop_at(lease_id)
    with pytest.raises(Interrupted):
        stopped.run()
    boundary = lease_id // 2
    assert list(stopped.folder.checkpoints()) == rows(stopped)[-1:] == [boundary]

    resumed = Loop(tmp_path / "stopped", save_every=0).run()

    assert ("load", boundary) in resumed.calls and "resumed from" in resumed.screen.getvalue()
    assert stopped.learner.trained + resumed.learner.trained == whole.learner.trained
    assert rows(resumed) == rows(whole) == [1, 2, 3, 4]
    for split in ("validation", "test"):
        assert epochs(resumed, split) == epochs(whole, split)


def test_a_falling_rate_that_another_length_moves_is_told_once(tmp_path: Path) -> None:
    falling = {"learner": {"lr_schedule": "linear"}}
    Loop(tmp_path, **falling).run()
    message = "falls until iteration 8 now, no longer 4: iteration 5 has 0.5 of the learning rate, not 0"
    assert message in Loop(tmp_path, iterations=8, **falling).run().screen.getvalue()
    assert "falls until" not in Loop(tmp_path, iterations=8, **falling).run().screen.getvalue()
    shorter = Loop(tmp_path, iterations=6, **falling).run().screen.getvalue()
    assert "falls until" not in shorter  # nothing is left to train
    Loop(tmp_path / "constant").run()
    assert "falls until" not in Loop(tmp_path / "constant", iterations=8).run().screen.getvalue()


@pytest.mark.parametrize("occurrence", [1, 2, 3, 4, 5])
def test_an_evaluation_that_a_stop_broke_off_is_made_after_the_resume_and_no_other_again(
    tmp_path: Path, occurrence: int
) -> None:
    """Lease EVALUATION is generated five times: both splits at 0, validation at 2, both at 4."""
    stopped = Loop(tmp_path)
    stopped.stop_at(EVALUATION, occurrence)
    with pytest.raises(Interrupted):
        stopped.run()

    resumed = Loop(tmp_path).run()

    assert epochs(resumed, "validation") == [0, 2, 4]
    assert epochs(resumed, "test") == [0, 4]
    assert rows(resumed) == [1, 2, 3, 4]
    assert (resumed.folder.model / "config.json").exists()


def test_what_came_after_the_last_checkpoint_is_forgotten_and_done_again(tmp_path: Path) -> None:
    """A reward server that is gone for good ends the run in iteration 4; checkpoint 2 is the last."""
    crashed = Loop(tmp_path, fails=lambda text: text == "text 7", reward_servers={"max_failures": 0})
    with pytest.raises(RewardError):
        crashed.run()
    assert rows(crashed) == [1, 2, 3]

    resumed = Loop(tmp_path).run()

    assert resumed.learner.trained == [[4, 5], [6, 7]]
    assert rows(resumed) == [1, 2, 3, 4]
    assert epochs(resumed, "validation") == [0, 2, 4]


def test_a_crash_before_any_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    crashed = Loop(tmp_path, fails=lambda text: text == "text 3", reward_servers={"max_failures": 0})
    with pytest.raises(RewardError):
        crashed.run()

    again = Loop(tmp_path).run()

    assert again.learner.trained[0] == [0, 1]
    assert epochs(again, "validation") == [0, 2, 4]
    assert rows(again) == [1, 2, 3, 4]


def test_a_finished_run_goes_on_when_more_is_asked_for(tmp_path: Path) -> None:
    Loop(tmp_path, iterations=2).run()
    longer = Loop(tmp_path, iterations=4).run()

    assert longer.learner.trained == [[4, 5], [6, 7]]
    assert epochs(longer, "test") == [0, 2, 4]
    assert ("export", 4) in longer.calls


def test_failed_samples_are_left_out_counted_and_remembered_by_a_resume(tmp_path: Path) -> None:
    def odd(text: str) -> bool:
        return text in ("text 1", "text 4")

    first = Loop(tmp_path, fails=odd, iterations=2, reward_servers={"max_failures": 2}).run()
    assert first.learner.trained == [[0], [2, 3]]
    assert [row["reward/failures"] for row in first.folder.rollout_info()] == [1, 0]
    assert [row["rollouts/trained"] for row in first.folder.rollout_info()] == [1, 2]

    second = Loop(tmp_path, fails=odd, iterations=3, reward_servers={"max_failures": 1})
    with pytest.raises(RewardError, match=r"2 rollouts were lost.*max_failures=1"):
        second.run()


def test_an_iteration_without_a_single_score_ends_the_run(tmp_path: Path) -> None:
    loop = Loop(tmp_path, fails=lambda text: text in ("text 0", "text 1"))

    with pytest.raises(RunError, match="iteration 1: none of 2 rollouts could be scored"):
        loop.run()


def test_a_model_that_was_half_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(learner: FakeLearner, folder: str) -> None:
        (Path(folder) / "config.json").write_text("{")
        raise OSError("no space left on device")

    loop = Loop(tmp_path, iterations=1)
    monkeypatch.setattr(FakeLearner, "export", half)
    with pytest.raises(OSError, match="no space"):
        loop.run()
    assert not loop.folder.model.exists()
    monkeypatch.undo()

    again = Loop(tmp_path, iterations=1).run()
    assert again.learner.trained == []
    assert (again.folder.model / "config.json").read_text() == "{}"


DIED = LearnerLost("the learner died")


def loses(loop: Loop, *updates: int, error: LearnerLost = DIED) -> None:
    """The learner is lost in these of its updates."""
    train, seen = loop.learner.update, 0

    def dies(*arguments: Any) -> dict[str, float]:
        nonlocal seen
        seen += 1
        if seen in updates:
            raise error
        return train(*arguments)

    loop.learner.update = dies  # type: ignore[method-assign]


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_lost_learner_goes_on_from_the_newest_checkpoint(tmp_path: Path, max_staleness: int) -> None:
    rollout = {"prompts_per_iteration": 2, "max_tokens": 4, "max_staleness": max_staleness}
    loop = Loop(tmp_path, rollout=rollout)
    loses(loop, 4)  # iteration 4: 3 is not saved
    loop.run()

    assert loop.learner.trained == [[0, 1], [2, 3], [4, 5], [4, 5], [6, 7]]
    assert rows(loop) == [1, 2, 3, 4] and epochs(loop, "validation") == [0, 2, 4]
    assert "the learner died; replacement 1 of 3 starts" in loop.screen.getvalue()
    assert [call for call in loop.calls if call[0] in ("restart", "load")] == [("restart", 3), ("load", 2)]


def test_one_lost_before_the_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loses(loop, 2)
    loop.run()

    assert loop.learner.trained == [[0, 1], [0, 1], [2, 3], [4, 5], [6, 7]]
    assert rows(loop) == [1, 2, 3, 4]


def test_one_lost_while_it_takes_the_place_of_another_is_replaced_too(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loses(loop, 3)
    load, restarts = loop.learner.load, []

    def dies_once(folder: str) -> None:
        restarts.append(folder)
        if len(restarts) == 1:
            raise LearnerLost("it died again")
        load(folder)

    loop.learner.load = dies_once  # type: ignore[method-assign]
    loop.run()

    assert loop.learner.trained == [[0, 1], [2, 3], [4, 5], [6, 7]] and len(restarts) == 2
    assert "it died again; replacement 2 of 3 starts" in loop.screen.getvalue()


@pytest.mark.parametrize("call", ["save", "publish", "export"])
def test_one_lost_while_it_writes_is_replaced_too(tmp_path: Path, call: str) -> None:
    loop = Loop(tmp_path)
    does, tries = getattr(loop.learner, call), []

    def dies_once(*arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise LearnerLost("it died")
        return does(*arguments)

    setattr(loop.learner, call, dies_once)
    loop.run()

    assert rows(loop) == [1, 2, 3, 4] and "it died; replacement 1 of 3 starts" in loop.screen.getvalue()
    assert {path.name for path in (loop.folder.path / "checkpoints").iterdir()} == {"2", "4"}
    assert (loop.folder.model / "config.json").exists()


def test_one_lost_while_it_saves_for_a_stop_ends_the_run_with_what_that_costs(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    save, tries = loop.learner.save, []

    def dies(folder: str) -> None:
        tries.append(folder)
        if len(tries) == 2:
            raise LearnerLost("it died")
        save(folder)

    loop.learner.save = dies  # type: ignore[method-assign]
    loop.stop_at(6)  # in iteration 4: 3 is not saved
    with pytest.raises(
        RunError, match=r"it died\. .* iterations after checkpoint 2 are lost; the same command"
    ):
        loop.run()
    assert Loop(tmp_path).run().learner.trained == [[4, 5], [6, 7]]


@pytest.mark.parametrize("in_this_start", [True, False])
def test_from_a_damaged_checkpoint_the_run_goes_back_to_the_one_before(
    tmp_path: Path, in_this_start: bool
) -> None:
    loop = Loop(tmp_path, save_every=1, iterations=5 if in_this_start else 3)
    if in_this_start:
        loses(loop, 4)
        loop.learner.restart = lambda *_: spoil(loop.folder.checkpoint(3))  # type: ignore[method-assign]
    loop.run()
    if not in_this_start:
        spoil(loop.folder.checkpoint(3))
        loop = Loop(tmp_path, save_every=1, iterations=5).run()

    assert loop.learner.trained[-3:] == [[4, 5], [6, 7], [8, 9]]
    assert rows(loop) == [1, 2, 3, 4, 5]
    printed = " ".join(loop.screen.getvalue().split())
    assert "checkpoints/3 is damaged: learner.json has 3 bytes; 1 were written." in printed
    assert [path.name[:9] for path in checkpoints.damaged(loop.folder)] == ["3.damaged"]


def spoil(checkpoint: Path) -> None:
    (checkpoint / "learner.json").write_text("999")


@pytest.mark.parametrize(
    "error", [DiskFull("no room"), LearnerError("a checkpoint of another model"), RunError("no")]
)
def test_what_another_learner_would_meet_as_well_is_not_tried_again(tmp_path: Path, error: RunError) -> None:
    loop, folders = Loop(tmp_path), []

    def fails(folder: str) -> None:
        folders.append(folder)
        raise error

    loop.learner.save = fails  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        loop.run()
    assert len(folders) == 1 and not [name for name, _ in loop.calls if name == "restart"]
    assert not list((loop.folder.path / "checkpoints").iterdir())  # no half of one


def test_too_many_lost_learners_end_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    loop = Loop(tmp_path, learner={"max_restarts": 1})
    loses(loop, 3, 4)
    with pytest.raises(RunError, match=r"that is loss 2 within an hour, and learner\.max_restarts=1"):
        loop.run()

    assert Loop(tmp_path).run().learner.trained == [[4, 5], [6, 7]]


def test_what_a_learner_raised_gets_one_more_try_in_that_iteration(tmp_path: Path) -> None:
    """Updates 3 and 5 are iterations 3 and 4: iteration 2 was saved, so 3 is done again in between."""
    failed = LearnerFailed("an update: MemoryError: 8 GiB\nTraceback …")
    loop = Loop(tmp_path)
    loses(loop, 3, 5, error=failed)
    loop.run()
    assert rows(loop) == [1, 2, 3, 4]

    loop = Loop(tmp_path / "again")
    loses(loop, 3, 4, error=failed)
    with pytest.raises(
        RunError, match=r"two learners raised in iteration 3, and so would a third: an update: Mem"
    ):
        loop.run()


def test_a_stop_while_another_learner_starts_saves_nothing_of_it(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loses(loop, 4)  # iteration 4: 3 is not saved
    loop.learner.restart = lambda on_progress: (loop.stop._ask(15, None), on_progress("start", 0, 1))  # type: ignore
    with pytest.raises(Interrupted):
        loop.run()
    assert not any(call == ("save", 3) for call in loop.calls)

    assert Loop(tmp_path).run().learner.trained == [[4, 5], [6, 7]]


def test_the_lines_of_one_iteration_by_hand() -> None:
    """Two rollouts of two tokens in 0.5 s; 100 tokens trained in 2 s; 4 s in all."""
    both = zip((1, 3), prompts(2), strict=True)
    leases = [Lease(n, prompt, (11,), n, 0, Sampling(max_tokens=4)) for n, prompt in both]
    rewards = FakeRewards()
    scored = [
        with_score(rollout_of(lease), rewards._score(f"text {lease.id}"))  # rewards 1 and 3
        for lease in leases
    ]
    trained = FakeLearner([]).update(scored, lambda *progress: None)
    info = rollout_info(
        Collected(scored, num_failed=1, rollout_s=0.5, reward_s=0.25),
        trained,
        pushed={"time/weights_s": 0.1, "weights/pushed_mb": 3.5},
        iteration_s=4.0,
        is_judged=True,
    )

    assert info == {
        "reward/mean": 2.0,
        "reward/std": pytest.approx(2**0.5),
        "reward/standard_error": 1.0,
        "response_length/mean": 2.0,
        "reward/number/mean": 2.0,
        "kl/mean": 0.01,
        "mismatch/kl": 0.0,
        "rollouts/scored": 2.0,
        "rollouts/trained": 2.0,
        "reward/failures": 1.0,
        "finish/stop": 1.0,
        "time/rollout_s": 0.5,
        "time/reward_s": 0.25,
        "time/score_s": 0.5,
        "time/update_s": 2.0,
        "time/weights_s": 0.1,
        "weights/pushed_mb": 3.5,
        "time/iteration_s": 4.0,
        "time/learner_idle_share": 0.375,
        "throughput/generated_tokens_per_s": 8.0,
        "throughput/trained_tokens_per_s": 50.0,
        "throughput/sequences_per_s": 0.5,
    }
    assert training_info(trained) == {"loss/policy": -0.2}
