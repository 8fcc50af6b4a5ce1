"""The annotation of a run's own rows: lost learners, requests to stop, and the epochs that are left."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import LearnerFailed, LearnerLost, RunError
from learner.learner import Learner
from learner.optimization.rate_schedule import schedule_factor
from learner.settings import LearnerSettings
from services.runs.tracking.console import Console
from services.terminal.interrupts import StopRequest
from services.training.sources.annotated_data import with_iterations
from services.training.train import own_annotation
from services.training.train import train as command
from services.training.train.train import train
from tests.local_run import LocalLearner, LocalWorkers, train_here
from tests.models import make_tiny_model
from tests.services.training.train.test_own_rows import HELD_OUT, NUM, PAIRS, folder_of, settings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("pairs"), PAIRS, HELD_OUT)


class Losing:
    """A learner's log-probabilities, of which some calls lose it; it counts its replacements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: type[LearnerLost], calls: range) -> None:
        self.num_calls = self.num_restarts = 0
        logprobs = LocalLearner.logprobs

        def loses(learner: LocalLearner, rollouts: Any, on_progress: Any) -> Any:
            self.num_calls += 1
            if self.num_calls in calls:
                raise error("the learner died")
            return logprobs(learner, rollouts, on_progress)

        def restart(learner: LocalLearner, on_progress: Any) -> None:
            self.num_restarts += 1

        monkeypatch.setattr(LocalLearner, "logprobs", loses)
        monkeypatch.setattr(LocalLearner, "restart", restart)


def test_a_learner_that_is_lost_meanwhile_is_replaced_and_the_part_computed_again(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_annotation, "ROWS_PER_PART", 8)
    losing = Losing(monkeypatch, LearnerLost, range(2, 3))
    folder = train_here(settings(model, tmp_path, pairs, iterations=1))
    assert folder.training_info() and losing.num_restarts == 1
    assert losing.num_calls == 3 + 1 + 1 + 1  # parts of train, one of each other split, and one anew


def test_a_learner_that_fails_each_time_ends_the_run(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(monkeypatch, LearnerFailed, range(1, 100))
    with pytest.raises(RunError, match=r"two learners raised .*: the learner died"):
        train_here(settings(model, tmp_path, pairs, iterations=1))
    assert losing.num_calls == 2


def test_a_stop_is_heard_while_rows_are_annotated_and_the_next_call_goes_on(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_annotation, "ROWS_PER_PART", 8)
    stops: list[StopRequest] = []
    hold, logprobs, num_rows = StopRequest.hold, LocalLearner.logprobs, []

    def held(stop: StopRequest, *arguments: Any, **options: Any) -> None:
        stops.append(stop)
        hold(stop, *arguments, **options)

    def counted(learner: LocalLearner, rollouts: Any, on_progress: Any) -> Any:
        num_rows.append(len(rollouts))
        if len(num_rows) == 2:
            assert stops, "a request is not held yet"
            stops[0]._is_asked = True
        return logprobs(learner, rollouts, on_progress)

    monkeypatch.setattr(StopRequest, "hold", held)
    monkeypatch.setattr(LocalLearner, "logprobs", counted)
    run = settings(model, tmp_path, pairs, iterations=1)
    assert train(run, here=True) == 130
    assert num_rows == [8, 8]  # the second part was saved as well
    assert "the same command continues with the results in" in command._last_words(
        command.RunFolder(tmp_path / "run")
    )
    assert train(run, here=True) == 0
    assert num_rows[:3] == [8, 8, 8]  # and the other splits


def test_the_models_files_are_hashed_once_for_all_splits_and_that_is_shown(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes: list[str] = []
    fingerprint, steps = own_annotation.reference_fingerprint, []

    def counted(path: str, folder: Path) -> str:
        hashes.append(path)
        return fingerprint(path, folder)

    doing = Console.doing

    def shown(console: Console, what: str) -> Any:
        steps.append(what)
        return doing(console, what)

    monkeypatch.setattr(own_annotation, "reference_fingerprint", counted)
    monkeypatch.setattr(Console, "doing", shown)
    train_here(settings(model, tmp_path, pairs, iterations=1))
    assert hashes == [str(model)] and steps.count("hashing the start model's files") == 1


def test_workers_that_share_the_learners_gpu_sleep_while_it_scores_and_measures(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def recorded(kind: type, name: str, shown: str) -> None:
        before = getattr(kind, name)

        def noted(self: Any, *arguments: Any, **options: Any) -> Any:
            steps.append(shown)
            return before(self, *arguments, **options)

        monkeypatch.setattr(kind, name, noted)

    recorded(LocalWorkers, "sleep", "sleeps")
    recorded(LocalLearner, "logprobs", "scores")
    recorded(LocalLearner, "measure", "measures")
    recorded(Learner, "leave_room", "leaves room")
    shared = {"prompts_per_iteration": 4, "max_tokens": 6, "sleep": True}
    train_here(settings(model, tmp_path, pairs, iterations=1, rollout=shared))
    passes = [place for place, step in enumerate(steps) if step in ("scores", "measures")]
    assert {steps[place] for place in passes} == {"scores", "measures"}
    for place in passes:
        assert (steps[place - 1], steps[place + 1]) == ("sleeps", "leaves room")


def test_epochs_of_rows_that_rewards_leave_out_are_counted_alike_at_the_start_and_later(
    model: Path, tmp_path: Path
) -> None:
    """Half of the responses earn less than the prompt's value, so they are left out."""
    rows = [{"prompt": f"{i} 1", "response": f" {i} {99 if i % 2 else 0}"} for i in range(NUM)]
    data = folder_of(tmp_path / "rows", rows, rows[:8])
    reward = "tests.services.annotated_rows:Last"
    learner = LearnerSettings(device="cpu", num_threads=1, lr_schedule="linear")
    algorithm = {"name": "a_lol", "learning_rate": 1e-3, "sampling_strategy": "good_random"}
    whole = settings(
        *(model, tmp_path, data, "a_lol"), algorithm=algorithm, reward=reward, learner=learner.model_dump()
    )
    assert whole.data is not None
    epochs = whole.model_copy(update={"data": whole.data.model_copy(update={"num_epochs": 2})})
    at_start = with_iterations(epochs).iterations
    folder = train_here(epochs)
    training = folder.training_info()
    assert len(training) == with_iterations(epochs).iterations < at_start == 6
    expected = [
        schedule_factor("linear", number, len(training), learner.warmup_iterations, learner.lr_end)
        for number in range(1, len(training) + 1)
    ]
    assert [row["learning_rate/factor"] for row in training] == pytest.approx(expected)
