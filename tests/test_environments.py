"""Whole runs in environments whose episodes fail for good, or are wrong input.

Those that die or hang are in `tests/test_faults.py`.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ITERATIONS, PROMPTS, TURNS = 6, 16, 3
WORLDS = "tests.rollout_workers.gymnasium_worlds"


class Countdown(EnvironmentSettings):
    """Wants a smaller number at each of three turns; each that is earns a point."""

    rewards_itself = True
    pause_s: float = 0.0  # that each turn takes

    def make(self) -> Environment:
        return _Countdown(self)


class _Countdown:
    def __init__(self, settings: Countdown) -> None:
        self._pause_s = settings.pause_s

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._last, self._num_turns, self._points = 100, 0, 0.0
        return Observation("99", header="50")

    def step(self, text: str) -> Step:
        time.sleep(self._pause_s)
        word = next(iter(text.split()), "")
        number = int(word) if word.isdigit() else 100
        point = float(number < self._last)
        self._last, self._num_turns, self._points = number, self._num_turns + 1, self._points + point
        over = self._num_turns == TURNS
        return Step(Observation(str(number)), point, terminated=over, info={"points": self._points})

    def close(self) -> None:
        pass


class Fragile(Countdown):
    """Its process dies at one prompt, at every attempt; a prompt that was played before is wrong input."""

    dies_at: str
    folder: str  # for a file of each prompt, and of each environment that was closed

    def make(self) -> Environment:
        return _Fragile(self)


class _Fragile(_Countdown):
    def __init__(self, settings: Fragile) -> None:
        super().__init__(settings)
        self._settings, self._folder = settings, Path(settings.folder)

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        played = self._folder / prompt.id.replace("/", "-")
        if played.exists():
            raise InputError(f"{prompt.id} was played before")
        played.touch()
        self._dies = prompt.id == self._settings.dies_at
        return super().reset(prompt, seed)

    def step(self, text: str) -> Step:
        if self._dies and self._num_turns == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(text)

    def close(self) -> None:
        (self._folder / f"closed-{os.getpid()}").touch()


def start(folder: Path, *options: str) -> Run:
    quick = (
        "metrics=[]",
        "tracking.enabled=false",
        "save_every=0",
        "evaluate_every=0",
        f"rollout.prompts_per_iteration={PROMPTS}",
        "rollout.max_tokens=12",
    )
    model = make_tiny_model(folder / "model")
    return Run(folder, "talks", f"model.path={model}", *quick, *options).start()


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Run]:
    lost = "increasing_numbers/train/5"
    made = start(
        tmp_path,
        f"iterations={ITERATIONS}",
        "evaluation.num_prompts=1",
        f"environment={{name: 'tests.test_environments:Fragile', dies_at: {lost}, folder: '{tmp_path}'}}",
        "environment.num_parallel=2",
        "environment.max_attempts=1",
        "environment.max_failures=1",
    )
    yield made
    made.end()


@pytest.mark.long
def test_an_episode_that_fails_for_good_is_left_out_and_wrong_input_ends_the_run(
    fragile: Run, tmp_path: Path
) -> None:
    assert fragile.finish() == 2, fragile.output
    rows = fragile.folder.rollout_info()
    assert len(rows) == 64 // PROMPTS < ITERATIONS  # until each prompt was played once
    assert sum(row["environment/failed"] for row in rows) == 1.0  # and the run went on
    for row in rows:
        assert row["rollouts/trained"] == PROMPTS - row["environment/failed"]
        assert row["turns/mean"] == TURNS  # of those that were trained on, each was played to its end
    assert "warning: prompt increasing_numbers/train/5 failed in environment=" in fragile.output

    errors = [line for line in fragile.output.splitlines() if line.startswith("whetstone train: ")]
    assert len(errors) == 1
    assert "2 episodes were lost, more than environment.max_failures=1" in errors[0]
    assert errors[0].endswith(" was played before")
    assert "Traceback" not in fragile.output


@pytest.fixture
def guessing(tmp_path: Path) -> Iterator[Run]:
    made = start(
        tmp_path,
        "iterations=2",
        "task=episodes",
        "evaluation.num_prompts=4",
        f"environment={{name: gymnasium_text, id: '{WORLDS}:WhetstoneTestGuess-v0'}}",
        "environment.num_parallel=2",
        "rollout.engine=vllm",
        "rollout.max_tokens=1",
    )
    yield made
    made.end()


@pytest.mark.long
def test_a_gymnasium_environment_is_trained_in_with_vllm(guessing: Run) -> None:
    """A number is said at each of two turns: below 10 it may be right, above 9 it never is."""
    assert guessing.finish() == 0, guessing.output
    rows = guessing.folder.rollout_info()
    assert [row["rollouts/trained"] for row in rows] == [PROMPTS] * 2
    for row in rows:
        # what is no action takes a turn more
        assert 1 < row["environment/steps/mean"] == row["turns/mean"] < 3
        assert row["environment/invalid/mean"] < 0.2  # special tokens are no numbers
        assert row["reward/mean"] == row["reward/environment/mean"] < 0
        assert (row["environment/failed"], row["environment/restarts"]) == (0.0, 0.0)
        assert row["mismatch/max_ratio"] < 1 + 1e-4
    for evaluation in guessing.folder.evaluations("val"):
        assert evaluation["metrics"]["environment/restarts"] == 0.0
