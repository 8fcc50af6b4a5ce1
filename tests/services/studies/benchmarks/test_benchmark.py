"""The benchmark: which runs it is, what is done again, and its table, worked by hand."""

import contextlib
import csv
import io
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from services.commands.benchmark import run
from services.config import compose
from services.runs.folder import RunFolder
from services.studies.benchmarks import plan as planning
from services.studies.benchmarks import rendering
from services.studies.benchmarks.grue import GRUE
from services.studies.benchmarks.plan import PlannedRun, known_tasks, left_out, remaining
from services.studies.benchmarks.rendering import marks, to_csv, with_error
from services.studies.benchmarks.table import RunResult, estimate, metrics_at, tables
from services.studies.benchmarks.table import result_of as result_of_measure
from tests.models import make_tiny_model

Metrics = dict[str, Any]
plan = partial(planning.plan, GRUE)
result_of = partial(result_of_measure, metrics_at)
to_html = partial(rendering.to_html, GRUE)
to_markdown = partial(rendering.to_markdown, GRUE)
write_tables = partial(rendering.write_tables, GRUE)


@pytest.fixture(autouse=True)
def experiments(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """conf/ with stand-ins for the experiments: numbers to count instead of texts to read."""
    folder = tmp_path_factory.mktemp("conf") / "conf"
    shutil.copytree(compose.CONF, folder, ignore=shutil.ignore_patterns("matrix"))
    for file in (folder / "experiment").glob("*.yaml"):
        file.unlink()
    for task, algorithm in [
        ("imdb", "supervised"),
        ("imdb", "ppo"),
        ("imdb", "nlpo"),
        ("imdb", "ppo_on_supervised"),
        ("commongen", "ppo"),
        ("my_task", "nlpo_on_supervised"),
    ]:
        name = algorithm.split("_")[0]
        (folder / "experiment" / f"{task}_{algorithm}.yaml").write_text(
            "# @package _global_\ndefaults:\n  - override /task: increasing_numbers\n"
            f"  - override /algorithm: {name}\nmodel:\n  path: somebody/{algorithm}\niterations: 2\n"
        )
    monkeypatch.setattr(compose, "CONF", folder)
    return folder


@pytest.fixture
def finish(tmp_path: Path) -> Callable[..., PlannedRun]:
    """Leave what a finished run leaves."""

    def finish(planned: PlannedRun, before: Metrics, after: Metrics, iterations: int = 2) -> PlannedRun:
        settings = planned.settings()
        folder = RunFolder.open(planned.job.folder.parent, planned.job.run_name, settings.resolved(), "auto")
        folder.append_evaluation(0, "test", before)
        for iteration in range(1, iterations + 1):
            folder.append_rollout_info(iteration, {"reward/mean": 0.5})
        if iterations == settings.iterations:
            folder.append_evaluation(iterations, "validation", {"reward/mean": 99.0})
            folder.append_evaluation(iterations, "test", after)
            folder.checkpoint(iterations).mkdir(parents=True)
            folder.model.mkdir()
        return planned

    return finish


def planned(
    out: Path, *overrides: str, algorithms: Sequence[str] = ("ppo",), **more: Any
) -> list[PlannedRun]:
    return plan(["imdb"], algorithms, more.pop("seeds", [0, 1, 2]), out, overrides, **more)


# Which runs


def test_runs_are_tasks_by_algorithms_by_seeds_and_supervised_comes_first(tmp_path: Path) -> None:
    runs = plan(["commongen", "imdb"], ["nlpo", "ppo", "supervised"], [3, 1], tmp_path)
    assert [run.job.run_name for run in runs] == [
        "commongen-ppo-seed3",
        "commongen-ppo-seed1",
        *(f"imdb-{name}-seed{seed}" for name in ("supervised", "ppo", "nlpo") for seed in (3, 1)),
    ]
    assert left_out(["commongen"], ["nlpo", "ppo"], runs) == ["commongen_nlpo"]


def test_a_run_is_its_experiment_with_its_seed_in_one_folder_and_one_mlflow_experiment(
    tmp_path: Path,
) -> None:
    out = tmp_path / 'my "grue", here'
    (run,) = planned(out, "iterations=7", algorithms=["nlpo"], seeds=[4])
    settings = run.settings()
    assert (settings.algorithm_name, settings.seed, settings.iterations) == ("nlpo", 4, 7)
    assert (settings.output_dir, settings.run_name) == (str(out), "imdb-nlpo-seed4")
    assert settings.tracking.experiment == "grue"
    assert planned(out, "tracking.experiment=mine")[0].settings().tracking.experiment == "mine"


def test_overrides_can_be_for_some_runs_alone(tmp_path: Path) -> None:
    overrides = ["iterations=5", "imdb:rollout.max_tokens=9", "nlpo:iterations=6", "imdb_ppo:seed_=1"]
    with pytest.raises(InputError, match="seed_"):
        remaining(plan(["imdb"], ["ppo"], [0], tmp_path, overrides))
    runs = plan(["imdb", "commongen"], ["ppo", "nlpo"], [0], tmp_path, overrides[:3])
    by_experiment = {run.experiment: run.settings() for run in runs}
    assert {name: run_settings.iterations for name, run_settings in by_experiment.items()} == {
        "imdb_ppo": 5,
        "imdb_nlpo": 6,
        "commongen_ppo": 5,
    }
    assert (
        by_experiment["imdb_ppo"].rollout.max_tokens == 9 != by_experiment["commongen_ppo"].rollout.max_tokens
    )


def test_on_supervised_begins_with_the_benchmarks_own_supervised_run_if_asked(tmp_path: Path) -> None:
    algorithms = ["supervised", "ppo_on_supervised"]
    (_, published) = planned(tmp_path, algorithms=algorithms, seeds=[2])
    assert published.settings().model.path == "somebody/ppo_on_supervised"
    first, second = planned(tmp_path, "model.path=x", algorithms=algorithms, seeds=[2], own_supervised=True)
    assert first.settings().model.path == "x"
    assert second.settings().model.path == str(first.folder.model)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tasks", "imbd"], "imbd: no task of this benchmark; did you mean 'imdb'?"),
        (["--algorithms", "pppo"], "did you mean 'ppo'?"),
        (["--seeds", "0,x"], "expected whole numbers, such as 0,1,2"),
        (["--seeds", "1,1"], "seed 1 is given twice"),
        (["--tasks", ","], "expected at least one task"),
        (["--tasks", "totto"], "there is no experiment for .* on totto: expected a file such as"),
        (["--without", "imdb_pppo"], "no experiment of this benchmark; did you mean 'imdb_ppo'"),
        (["seed=3"], "benchmark sets seed; choose it by --seeds"),
        (["output_dir=x"], "benchmark sets output_dir; choose it by --out"),
        (["imbd:iterations=3"], "imbd is not a task, algorithm or experiment of the benchmark; did you mean"),
        (["iterations"], "iterations: expected KEY=VALUE"),
        (["imdb:iteration=3", "--tasks", "imdb"], "imdb_ppo: .*did you mean 'iterations'?"),
        (["--table", "--out", "nowhere"], "nowhere: there is no such folder"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_started(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"(?s)" + message):
        run(["grue", *argv])
    assert list(tmp_path.iterdir()) == []


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    overrides = [f"imdb_ppo:model.path={tmp_path / 'no'}", f"imdb_nlpo:model.path={tmp_path / 'none'}"]
    with pytest.raises(InputError) as caught:
        remaining(planned(tmp_path / "out", *overrides, algorithms=["ppo", "nlpo"]))
    message = str(caught.value)
    assert message.startswith("2 of 2 experiments can't be run, and none was started:")
    assert message.count("there is no such folder") == 2  # not once a seed
    assert message.endswith("or leave them out: --without imdb_ppo,imdb_nlpo")
    (kept,) = plan(["imdb"], ["ppo", "nlpo"], [0], tmp_path, without=["imdb_nlpo"])
    assert kept.experiment == "imdb_ppo"


def test_any_task_with_an_experiment_can_be_asked_for(tmp_path: Path) -> None:
    assert known_tasks(GRUE) == (*GRUE.tasks, "my_task")
    (run,) = plan(["my_task"], ["ppo", "nlpo_on_supervised"], [0], tmp_path)
    assert run.experiment == "my_task_nlpo_on_supervised"


# What is done again


def test_finished_runs_are_left_alone_and_open_ones_go_on(
    tmp_path: Path, finish: Callable[..., PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.training.preflight.preflight.check", lambda _settings: None)
    runs = planned(tmp_path)
    finish(runs[0], {}, {"reward/mean": 1.0})
    finish(runs[1], {}, {}, iterations=1)
    assert remaining(runs) == runs[1:]
    assert remaining(planned(tmp_path, "iterations=3")) == planned(tmp_path, "iterations=3")  # none has three
    with pytest.raises(InputError, match=r"another configuration:\n  rollout.max_tokens: there"):
        remaining(planned(tmp_path, "rollout.max_tokens=3"))


def test_a_run_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path,
    finish: Callable[..., PlannedRun],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_name = {run.job.run_name: run for run in planned(tmp_path)}

    def start(job: Any, number: int, total: int) -> int:
        assert total == 3
        if number == 2:
            return 1
        finish(by_name[job.run_name], {"reward/mean": 0.0}, {"reward/mean": float(number)})
        return 0

    monkeypatch.setattr("services.training.preflight.preflight.check", lambda _settings: None)
    monkeypatch.setattr("services.studies.benchmarks.running.start", start)
    argv = ["grue", "--tasks", "imdb", "--algorithms", "ppo", "--out", str(tmp_path)]
    assert run(argv) == 1
    output = capsys.readouterr().out
    assert "imdb-ppo-seed1 ended with exit code 1; the others go on" in output
    assert "  imdb-ppo-seed1: failed, exit code 1" in output
    # 1 and 3: mean 2, standard error √2 / √2
    assert "| reward/mean | 2.0 ± 1.0 (0) |" in (tmp_path / "grue.md").read_text()

    monkeypatch.setattr(
        "services.studies.benchmarks.running.start", lambda *_: pytest.fail("nothing is to be started")
    )
    assert run([*argv, "--table"]) == 0
    assert "imdb-ppo-seed1: not started" in capsys.readouterr().out


def test_an_interrupted_benchmark_has_the_table_of_what_ended(
    tmp_path: Path, finish: Callable[..., PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(tmp_path)[0]

    def start(_job: Any, number: int, _total: int) -> int:
        if number == 2:
            raise KeyboardInterrupt
        finish(first, {}, {"reward/mean": 4.0})
        return 0

    monkeypatch.setattr("services.training.preflight.preflight.check", lambda _settings: None)
    monkeypatch.setattr("services.studies.benchmarks.running.start", start)
    with pytest.raises(KeyboardInterrupt):
        run(["grue", "--tasks", "imdb", "--algorithms", "ppo", "--out", str(tmp_path)])
    assert "| metric | ppo (1 of 3 runs) |" in (tmp_path / "grue.md").read_text()


# The table


def results(out: Path, finish: Callable[..., PlannedRun]) -> list[RunResult]:
    """Three PPO runs, the last unfinished; one NLPO run."""
    runs = planned(out, algorithms=["ppo", "nlpo"])[:4]
    more = {"reward/standard_error": 0.5, "words/ignored": None, "a|b": float("nan")}
    finish(runs[0], {"reward/mean": 0.1}, {"reward/mean": 0.6, "perplexity": 30.0, **more})
    finish(runs[1], {"reward/mean": 0.3}, {"reward/mean": 0.8, **more})
    finish(runs[2], {"reward/mean": 0.2}, {}, iterations=1)
    finish(runs[3], {}, {"reward/mean": 0.5, "<b>&": 1234.5})
    return [result_of(run) for run in runs]


def test_cells_are_means_and_standard_errors_over_finished_runs(
    tmp_path: Path, finish: Callable[..., PlannedRun]
) -> None:
    run_results = results(tmp_path, finish)
    assert [result.state for result in run_results] == [
        "finished",
        "finished",
        "1 of 2 iterations",
        "finished",
    ]
    (table,) = tables(run_results)
    assert (table.task, table.algorithms) == ("imdb", ("ppo", "nlpo"))
    assert table.num_runs == {"ppo": (2, 3), "nlpo": (1, 1)}
    assert list(table.cells) == ["reward/mean", "perplexity", "<b>&"]

    # 0.6 and 0.8: mean 0.7, variance (0.1² + 0.1²) / 1 = 0.02, standard error √(0.02 / 2) = 0.1
    ppo = table.cells["reward/mean"]["ppo"]
    assert ppo.after.mean == pytest.approx(0.7) and ppo.after.standard_error == pytest.approx(0.1)
    # the unfinished run counts neither before nor after: 0.1 and 0.3
    assert ppo.before is not None and ppo.before.mean == pytest.approx(0.2)
    assert table.cells["perplexity"] == {"ppo": table.cells["perplexity"]["ppo"]}
    one = table.cells["perplexity"]["ppo"].after
    assert (one.mean, one.standard_error, one.num_runs) == (30.0, None, 1)


@settings(deadline=None)  # a busy machine takes its time
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9), st.randoms())
def test_the_order_of_seeds_changes_nothing(values: list[float], random: Any) -> None:
    shuffled = random.sample(values, len(values))
    first, second = estimate(values), estimate(shuffled)
    assert first is not None and second is not None
    assert first.mean == pytest.approx(second.mean, abs=1e-6)
    assert first.standard_error == pytest.approx(second.standard_error, abs=1e-6)
    assert "±" in with_error(first)


def test_markdown_and_csv(tmp_path: Path, finish: Callable[..., PlannedRun]) -> None:
    run_results = results(tmp_path, finish)
    markdown = to_markdown(tables(run_results), run_results)
    assert "| metric | ppo (2 of 3 runs) | nlpo (1 run) |\n| --- | --: | --: |\n" in markdown
    assert "| reward/mean | 0.70 ± 0.10 (0.2) | 0.5 |\n| perplexity | 30 in 1 run | – |" in markdown
    assert "- imdb-ppo-seed2: 1 of 2 iterations" in markdown
    rows = list(csv.DictReader(io.StringIO(to_csv(tables(run_results)))))
    assert [(row["algorithm"], row["metric"], row["num_runs"]) for row in rows] == [
        ("ppo", "reward/mean", "2"),
        ("nlpo", "reward/mean", "1"),
        ("ppo", "perplexity", "1"),
        ("nlpo", "<b>&", "1"),
    ]
    assert float(rows[0]["mean"]) == pytest.approx(0.7) and float(rows[0]["before_mean"]) == pytest.approx(
        0.2
    )
    assert (rows[1]["mean"], rows[1]["standard_error"], rows[1]["before_mean"]) == ("0.5", "", "")


class Page(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.text, self.tags, self.links = "", list[str](), list[str | None]()
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.text += " ".join(data.split()) + " "

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]


def test_the_page_says_the_same_and_fetches_nothing(
    tmp_path: Path, finish: Callable[..., PlannedRun]
) -> None:
    run_results = results(tmp_path, finish)
    (tmp_path / "imdb-ppo-seed0" / "report.html").touch()
    assert sorted(path.name for path in write_tables(run_results, tmp_path)) == [
        "grue.csv",
        "grue.html",
        "grue.md",
    ]
    page = Page((tmp_path / "grue.html").read_text())
    assert "0.70 ± 0.10 from 0.2" in page.text and "runs finished 3 of 4" in page.text
    assert "<b>&" in page.text and "b" not in page.tags[page.tags.index("table") :]
    assert page.links == ["imdb-ppo-seed0/report.html"]
    assert not {"script", "link", "img"} & set(page.tags)


def test_little_plots_share_a_scale(tmp_path: Path, finish: Callable[..., PlannedRun]) -> None:
    (table,) = tables(results(tmp_path, finish))
    ppo, nlpo = marks(table, "reward/mean")
    # from 0.2 (before) to 0.8 (0.7 + 0.1) over 8 … 162: 0.5 and 0.6 are at a half and two thirds
    assert (ppo.before, ppo.high) == (8, 162)
    assert (nlpo.low, nlpo.mean, nlpo.high) == (85, 85, 85)
    assert ppo.low == pytest.approx(8 + 154 * 2 / 3, abs=0.1)
    (alone,) = marks(table, "<b>&")
    assert alone.mean == 85  # one value has no scale


def test_no_runs_make_an_empty_table(tmp_path: Path) -> None:
    run_results = [result_of(run) for run in planned(tmp_path)]
    assert "No run has finished yet." in to_markdown(tables(run_results), run_results)
    assert "No run has finished yet." in to_html(tables(run_results), run_results, tmp_path)


@pytest.mark.long
@pytest.mark.ray
def test_a_real_run_is_tabulated_tracked_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the processes that are started read the real conf/
    model = make_tiny_model(tmp_path / "model")
    argv = [
        "grue",
        "--tasks=increasing_numbers",
        "--algorithms=ppo",
        "--seeds=1",
        f"--out={tmp_path / 'grue'}",
        f"model.path={model}",
        "cluster=laptop",
        "iterations=1",
        "rollout.engine=transformers",
        "rollout.prompts_per_iteration=4",
        "rollout.max_tokens=4",
        "rollout.min_tokens=0",
        "evaluation.num_prompts=4",
        "evaluation.max_tokens=4",
        "evaluation.min_tokens=0",
    ]
    assert run(argv) == 0
    rows = list(csv.DictReader((tmp_path / "grue" / "grue.csv").open()))
    (reward,) = [row for row in rows if row["metric"] == "reward/mean"]
    folder = RunFolder(tmp_path / "grue" / "increasing_numbers-ppo-seed1")
    measured = folder.evaluations("test")[-1]["metrics"]["reward/mean"]
    assert (float(reward["mean"]), reward["num_runs"]) == (pytest.approx(measured), "1")
    with contextlib.closing(sqlite3.connect(tmp_path / "grue" / "mlflow.db")) as database:
        named = "SELECT runs.name FROM runs JOIN experiments e USING (experiment_id) WHERE e.name = 'grue'"
        assert database.execute(named).fetchall() == [(folder.path.name,)]
    monkeypatch.setattr("services.studies.benchmarks.running.start", lambda *_: pytest.fail("it is finished"))
    assert run(argv) == 0
