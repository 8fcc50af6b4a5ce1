"""`whetstone benchmark offline`: runs on annotated data in this process, gone on with, and their tables."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.commands import annotate
from services.commands.benchmark import run
from services.config import compose
from services.runs.folder import RunFolder
from services.studies.benchmarks.benchmark import Benchmark
from services.studies.benchmarks.offline import OFFLINE, measure
from services.studies.benchmarks.plan import known_tasks, plan, remaining
from services.studies.benchmarks.rendering import groups, to_html, to_markdown
from services.studies.benchmarks.table import result_of, tables
from tests.local_run import train_here
from tests.models import make_tiny_model

PAIRS = "tests.services.annotated_rows:Pairs"
SMALL = """
evaluate_every: 2
rollout: {prompts_per_iteration: 4, max_tokens: 4, engine: transformers}
evaluation: {num_prompts: 3}
learner: {device: cpu, num_threads: 1}
metrics: [distinct_n, length]
tracking: {enabled: false}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Ten prompts with a good and a bad response each."""
    folder = tmp_path_factory.mktemp("data") / "out"
    arguments = [f"task={{name: '{PAIRS}', num: 10}}", f"reference={model}", f"output={folder}"]
    arguments += ["reward=[{name: length, target: 3}, {name: distinct_n, weight: 0.5}]"]
    arguments += ["executor=here", "learner.device=cpu"]
    assert annotate.run([*arguments, "rollout.max_tokens=4"]) == 0
    return folder


@pytest.fixture(autouse=True)
def experiments(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, model: Path, data: Path
) -> None:
    """conf/ with two experiments of a task `toy`."""
    folder = tmp_path_factory.mktemp("conf") / "conf"
    shutil.copytree(compose.CONF, folder, ignore=shutil.ignore_patterns("experiment", "matrix"))
    (folder / "experiment").mkdir()
    for algorithm in ("nll", "dpo"):
        (folder / "experiment" / f"toy_{algorithm}.yaml").write_text(
            f"# @package _global_\ndefaults:\n  - override /algorithm: {algorithm}\n{SMALL}"
            f"model: {{path: '{model}'}}\ndata: {{folder: '{data}', num_epochs: 1, rank_by: order}}\n"
        )
    monkeypatch.setattr(compose, "CONF", folder)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were started, which train in this process."""
    names: list[str] = []

    def start(job: Any, _number: int, _total: int) -> int:
        names.append(job.run_name)
        train_here(compose.run_settings(list(job.overrides)))
        return 0

    monkeypatch.setattr("services.studies.benchmarks.running.start", start)
    monkeypatch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)
    return names


def argv(out: Path, *more: str) -> list[str]:
    return ["offline", "--tasks", "toy", "--out", str(out), *more]


def test_runs_are_made_once_and_their_table_has_rewards_parts_lengths_and_distinct_n_grams(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv(tmp_path, "--seeds", "0,1")) == 0
    assert started == [f"toy-{algorithm}-seed{seed}" for algorithm in ("nll", "dpo") for seed in (0, 1)]
    assert "no such experiment" not in capsys.readouterr().out  # nobody named the other nine

    rows = list(csv.DictReader((tmp_path / "offline.csv").open()))
    of_nll = {row["metric"]: row for row in rows if row["algorithm"] == "nll"}
    assert list(of_nll) == [
        *("reward/mean", "reward/length/mean", "reward/distinct_n/mean", "response_length/mean"),
        *("lexical/distinct-1", "lexical/distinct-2", "lexical/distinct-3", "length/mean_words"),
        *("validation/reward/mean", "validation/best/reward", "validation/best/iteration"),
        *("training/responses", "training/minutes"),
    ]
    rewards = [
        RunFolder(tmp_path / f"toy-nll-seed{seed}").evaluations("test")[-1]["metrics"]["reward/mean"]
        for seed in (0, 1)
    ]
    mean = of_nll["reward/mean"]
    assert float(mean["mean"]) == pytest.approx(sum(rewards) / 2)
    assert float(mean["standard_error"]) == pytest.approx(abs(rewards[0] - rewards[1]) / 2)
    assert (mean["before_mean"] != "", mean["num_runs"]) == (True, "2")
    # an epoch of nll has the ten good responses, of dpo ten pairs
    responses = {row["algorithm"]: row["mean"] for row in rows if row["metric"] == "training/responses"}
    assert responses == {"nll": "10.0", "dpo": "20.0"}
    assert of_nll["validation/best/iteration"]["before_mean"] == ""

    started.clear()
    assert run(argv(tmp_path, "--seeds", "0,1")) == 0 and started == []
    assert run(argv(tmp_path, "--seeds", "0,1,2", "--algorithms", "nll,pro")) == 0
    assert started == ["toy-nll-seed2"]
    assert "no such experiment, so left out: toy_pro" in capsys.readouterr().out
    # more epochs are more iterations of the same runs
    started.clear()
    assert run(argv(tmp_path, "--seeds", "0", "--algorithms", "nll", "data.num_epochs=2")) == 0
    assert started == ["toy-nll-seed0"]
    assert RunFolder(tmp_path / "toy-nll-seed0").rollout_info()[-1]["iteration"] == 6


@pytest.fixture
def finish(tmp_path: Path) -> Callable[[str, int], None]:
    """Leave what a finished run leaves, with validation rewards 1, 3, 2."""

    def finish(name: str, seed: int) -> None:
        folder = RunFolder.open(tmp_path, f"toy-{name}-seed{seed}", {"iterations": 4}, "auto")
        for iteration, reward in ((0, 1.0), (2, 3.0), (4, 2.0)):
            folder.append_evaluation(iteration, "validation", {"reward/mean": reward})
        test = {"zeta": 1.0, "lexical/distinct-1": 0.5, "reward/std": 9.0, "reward/a/mean": 1.0}
        folder.append_evaluation(4, "test", {**test, "reward/mean": 2.0 + seed})
        for iteration in (1, 2):
            info = {"rollouts/trained": 8, "time/iteration_s": 90.0}
            folder.append_rollout_info(iteration, info)
        folder.checkpoint(4).mkdir(parents=True)
        folder.model.mkdir()

    return finish


def test_metrics_in_their_order_the_best_validation_and_what_training_cost(
    tmp_path: Path, finish: Callable[[str, int], None]
) -> None:
    finish("nll", 0)
    metrics = measure(RunFolder(tmp_path / "toy-nll-seed0"), 4)
    assert list(metrics)[:4] == ["reward/mean", "reward/a/mean", "lexical/distinct-1", "zeta"]
    assert {key: value for key, value in metrics.items() if key.startswith(("validation", "training"))} == {
        "validation/reward/mean": 2.0,
        "validation/best/reward": 3.0,
        "validation/best/iteration": 2.0,
        "training/responses": 16.0,
        "training/minutes": 3.0,
    }
    assert measure(RunFolder(tmp_path / "toy-nll-seed0"), 0) == {}


def test_algorithms_go_down_and_what_was_on_the_way_has_a_table_of_its_own(
    tmp_path: Path, finish: Callable[[str, int], None]
) -> None:
    for seed in (0, 1):
        finish("nll", seed)
    runs = plan(OFFLINE, ["toy"], ["nll", "dpo"], [0, 1], tmp_path)
    results = [result_of(measure, planned_run) for planned_run in runs]
    task_tables = tables(results)
    ((head, first), (second_head, second)) = groups(OFFLINE, task_tables[0])
    assert (head, first[0], second_head, second[0]) == (
        *("", "reward/mean"),
        *("on the way", "validation/reward/mean"),
    )
    markdown = to_markdown(OFFLINE, task_tables, results)
    assert "| algorithm | reward/mean | reward/a/mean | lexical/distinct-1 | zeta |\n" in markdown
    # 2 and 3: mean 2.5, standard error 0.5
    assert "| nll (2 runs) | 2.50 ± 0.50 | 1 ± 0 | 0.5 ± 0 | 1 ± 0 |\n" in markdown
    assert "| dpo (0 of 2 runs) | – | – | – | – |" in markdown
    html = to_html(OFFLINE, task_tables, results, tmp_path)
    assert "2.50 ± 0.50" in html and html.count('class="across"') == 2
    assert "compare runs of equal size" in html and "<script" not in html


def test_tasks_are_lolrls_and_any_with_such_an_experiment() -> None:
    assert known_tasks(OFFLINE) == (*OFFLINE.tasks, "toy")


def test_what_does_not_belong_to_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no algorithm of offline begins with a supervised model"):
        run(argv(tmp_path, "--own-supervised"))
    with pytest.raises(InputError, match="ppo: no algorithm of this benchmark"):
        run(argv(tmp_path, "--algorithms", "ppo"))
    with pytest.raises(InputError, match=r"(?s)toy_nll: data=.*nowhere: there is no annotation"):
        remaining(
            plan(OFFLINE, ["toy"], ["nll"], [0], tmp_path, [f"data={tmp_path / 'nowhere'}", "task=dates"])
        )


def test_another_benchmark_is_only_its_record() -> None:
    mine = Benchmark("mine", "Mine", "two", ("toy",), ("dpo",), measure)
    (planned,) = plan(mine, ["toy"], ["dpo"], [3], Path("out"))
    assert planned.job.run_name == "toy-dpo-seed3"
    assert planned.settings().tracking.experiment == "mine"
