"""Whole runs in which something dies or fails: they go on, say so, and train on every prompt once."""

import contextlib
import re
from collections.abc import Iterator

import psutil
import pytest

from services.data.tasks.increasing_numbers import IncreasingNumbers
from services.training.loop.collecting import FIRST_NOTE_S
from services.training.sources.prompt_order import PromptOrder
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

ITERATIONS = 8
PROMPTS = 32  # an iteration
REWARD = "reward={name: 'tests.fickle_reward:Fickle', label: fickle, never: '7'}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Both runs of this file, begun side by side: a start is half waiting."""
    folder = tmp_path_factory.mktemp("survival")
    model = make_tiny_model(folder / "model")

    def make(name: str, *options: str) -> Run:
        rest = ("rollout.engine=transformers", "metrics=[]", "tracking.enabled=false", REWARD)
        return Run(folder, name, f"model.path={model}", f"iterations={ITERATIONS}", *rest, *options).start()

    made = {
        "survivor": make("survivor", "reward_servers.max_failures=1000", "save_every=0"),
        "failing": make("failing", "reward_servers.max_failures=0", "evaluation.num_prompts=1"),
    }
    yield made
    for run in made.values():
        run.end()


def processes(run: Run, title: str) -> list[psutil.Process]:
    """Those of Ray's workers whose title begins so: it names the actor's class and what it does."""
    titled = []
    for process in run.children():
        with contextlib.suppress(psutil.Error):  # it ended a moment ago
            titled += [process] if process.cmdline()[:1] and process.cmdline()[0].startswith(title) else []
    return titled


def test_a_killed_worker_a_killed_grader_and_failing_samples_cost_no_prompt(
    runs: dict[str, Run],
) -> None:
    run = runs["survivor"]
    for iteration, title in ((2, "ray::RolloutWorker"), (5, "ray::RewardReplica")):
        run.wait_for_iteration(iteration)
        (victim,) = processes(run, title)
        victim.kill()
        await_another(run, title, victim)

    assert run.finish() == 0, run.output

    assert "worker 0 died" in run.output and "prompts are leased again" in run.output
    assert "worker 1 (process" in run.output and "is up and has the current weights" in run.output
    rows = run.folder.rollout_info()
    slowest_s = max(row["time/reward_s"] for row in rows)
    if slowest_s > FIRST_NOTE_S:  # a replica that was back sooner is nothing to tell
        assert re.search(r"reward fickle: its process died|for the scores of \d+ texts: .* died", run.output)
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    expected = unscored_prompts()
    assert sum(expected) > 0
    assert [row["reward/failures"] for row in rows] == expected
    assert [row["rollouts/trained"] for row in rows] == [PROMPTS - failed for failed in expected]
    assert (
        max(row["mismatch/max_ratio"] for row in rows) < 1 + 1e-4
    )  # the replacement had the learner's weights


def await_another(run: Run, title: str, victim: psutil.Process) -> None:
    run.wait_for(f"another {title}", lambda: set(processes(run, title)) - {victim})


def unscored_prompts() -> list[int]:
    """How many of each iteration's prompts begin with 7, by the run's own order."""
    prompts = IncreasingNumbers(num_prompts=64, num_eval_prompts=8).prompts("train")
    order = PromptOrder(len(prompts), seed=0)
    drawn = [[prompts[index].text for index in order.next(PROMPTS)] for _ in range(ITERATIONS)]
    return [sum(text.split()[0] == "7" for text in texts) for texts in drawn]


def test_too_many_failing_samples_end_the_run_and_show_the_sample(runs: dict[str, Run]) -> None:
    run = runs["failing"]

    assert run.finish() == 1
    assert "1 rollouts were lost, more than reward_servers.max_failures=0" in run.output
    assert "I never score 7" in run.output and "prompt: '7 " in run.output and "text: '" in run.output
    assert "Traceback" not in run.output
