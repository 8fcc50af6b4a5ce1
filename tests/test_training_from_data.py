"""Whole runs that learn from annotated data: killed or not they end alike, and training goes on from them by
generating.
"""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from services.commands import annotate
from tests.models import make_tiny_model
from tests.runs import Run
from tests.test_training import assert_same_results, evaluations, leave_alone

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

ITERATIONS, SAVED = 60, 20
LEAN = ("rollout.engine=transformers", "evaluate_every=0", "metrics=[]", "tracking.enabled=false")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """48 responses of ten numbers, some of them sorted; with the model's own log-probabilities and values."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    rows = []
    for place in range(48):
        numbers = draw.integers(10, 100, 10)
        text = " ".join(map(str, sorted(numbers) if place % 2 else numbers))
        rows.append({"prompt": f"{place % 10} {place // 5}", "response": text})
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"data.files={{train: {file}, validation: {file}}}", "reward=increasing_numbers"]
    arguments += [f"reference={model}", "value=true", "value.num_epochs=2", f"output={folder / 'out'}"]
    arguments += ["executor=here", "rollout.engine=transformers", "rollout.max_tokens=16"]
    assert annotate.run([*arguments, "learner.device=cpu"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, model: Path, data: Path) -> Iterator[dict[str, Run]]:
    """One that nobody disturbs and, begun beside it, one that is killed and started again."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str) -> Run:
        options = (f"data={data}", "algorithm=a_lol", f"model.path={model}", *LEAN)
        return Run(folder, name, *options, f"iterations={ITERATIONS}", f"save_every={SAVED}")

    made = {name: make(name) for name in ("straight", "killed")}
    made["online"] = Run(
        folder, "online", f"model.path={made['straight'].folder.model}", *LEAN, "iterations=2"
    )
    with ThreadPoolExecutor(max_workers=2) as pool:
        straight, killed = pool.submit(leave_alone, made["straight"]), pool.submit(kill_once, made["killed"])
        straight.result()
        pool.submit(leave_alone, made["online"]).result()
        killed.result()
    yield made
    for run in made.values():
        run.end()


def kill_once(run: Run) -> Run:
    """Kill -9 once a checkpoint is there, and begin again."""
    run.start().wait_for("a checkpoint", run.folder.checkpoints)
    run.wait_for_iteration(SAVED + 1)
    run.signal(signal.SIGKILL, to_all=True)
    assert run.finish() == -signal.SIGKILL
    assert run.left_over() == [] and max(run.folder.checkpoints()) < ITERATIONS
    return leave_alone(run)


def test_a_run_on_data_is_evaluated_by_workers_and_reward_servers(runs: dict[str, Run]) -> None:
    folder = runs["straight"].folder
    rollout = folder.rollout_info()
    assert [row["iteration"] for row in rollout] == list(range(1, ITERATIONS + 1))
    assert {row["throughput/generated_tokens_per_s"] for row in rollout} == {0.0}
    for split in ("val", "test"):
        assert [row["epoch"] for row in folder.evaluations(split)] == [0, ITERATIONS]
        assert len(folder.predictions(ITERATIONS, split)) == 8
    before, after = (row["metrics"]["reward/mean"] for row in folder.evaluations("val"))
    assert after > before + 0.05


def test_a_killed_run_on_data_goes_on_as_if_nothing_had_been(runs: dict[str, Run]) -> None:
    assert_same_results(runs["killed"], runs["straight"])


def test_online_training_begins_where_learning_from_data_ended(runs: dict[str, Run]) -> None:
    online, offline = runs["online"], runs["straight"]
    assert [row["rollouts/trained"] for row in online.folder.rollout_info()] == [32.0, 32.0]
    for split in ("val", "test"):
        first, last = evaluations(online, split)[0], evaluations(offline, split)[-1]
        assert first[1:] == last[1:]  # of the same prompts and draws the same texts
    assert max(row["mismatch/max_ratio"] for row in online.folder.rollout_info()) < 1 + 1e-4
