"""A whole run in an environment: its processes die and hang, and it trains on whole episodes only."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contracts.environments import Environment, Observation, Step
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings
from tests.models import make_tiny_model
from tests.runs import Run
from tests.test_survival import await_another, processes

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ITERATIONS, PROMPTS, TURNS = 6, 16, 3


class Countdown(EnvironmentSettings):
    """Wants a smaller number at each of three turns; each that is earns a point."""

    rewards_itself = True

    def make(self) -> Environment:
        return _Countdown()


class _Countdown:
    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._last, self._num_turns, self._points = 100, 0, 0.0
        return Observation("99", header="50")

    def step(self, text: str) -> Step:
        word = next(iter(text.split()), "")
        number = int(word) if word.isdigit() else 100
        point = float(number < self._last)
        self._last, self._num_turns, self._points = number, self._num_turns + 1, self._points + point
        over = self._num_turns == TURNS
        return Step(Observation(str(number)), point, terminated=over, info={"points": self._points})

    def close(self) -> None:
        pass


@pytest.fixture(scope="module", params=["auto"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("environments")
    model = make_tiny_model(folder / "model")
    options = (
        "environment={name: 'tests.test_environments:Countdown', num_parallel: 3}",
        "environment.step_timeout_s=3.0",
        "metrics=[]",
        "tracking.enabled=false",
        "save_every=0",
        "evaluate_every=0",
        f"rollout.prompts_per_iteration={PROMPTS}",
        "rollout.max_tokens=12",
    )
    made = Run(folder, "talks", f"model.path={model}", f"iterations={ITERATIONS}", *options).start()
    yield made
    made.end()


def test_a_killed_and_a_hung_environment_cost_no_episode(run: Run, tmp_path: Path) -> None:
    title = "ray::EnvironmentHost"
    for iteration, number in ((1, signal.SIGKILL), (3, signal.SIGSTOP)):
        run.wait_for_iteration(iteration)
        victim: psutil.Process = processes(run, title)[0]
        os.kill(victim.pid, number)
        await_another(run, title, victim)

    assert run.finish() == 0, run.output
    rows = run.folder.rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    # every episode was played to its end, whoever died meanwhile, and trained on once
    assert [row["rollouts/trained"] for row in rows] == [PROMPTS] * ITERATIONS
    assert [row["turns/mean"] for row in rows] == [TURNS] * ITERATIONS
    assert [row["environment/failed"] for row in rows] == [0.0] * ITERATIONS
    assert sum(row["environment/restarts"] for row in rows) >= 2
    # what the worker sampled is what the learner finds, in later turns as in the first
    assert max(row["mismatch/max"] for row in rows) < 1e-4
