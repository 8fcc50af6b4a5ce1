"""Whole runs with every part real: what they leave behind, and that no end of a process changes a result."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from services.commands import train
from services.runs.json_lines import read_rows
from tests.models import make_tiny_model
from tests.runs import Run, results

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]

ITERATIONS = 16  # several after the last kill: a quiet machine is done with three before the signal comes
OPTIONS = (f"iterations={ITERATIONS}", "evaluate_every=8", "save_every=4")
LEAN = ("metrics=[]", "tracking.enabled=false")
VLLM = pytest.param("vllm", marks=pytest.mark.vllm)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs with one configuration; each future gives its run once that has finished."""

    straight: Future[Run]
    disturbed: Future[Run]


@pytest.fixture(scope="module")
def pairs(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Pair]]:
    """Runs that nobody disturbs, and for the long tests one of each engine that is interrupted and killed.

    Two go on at a time: a start is half waiting.
    """
    folder = tmp_path_factory.mktemp("training")
    model = make_tiny_model(folder / "model")
    made: list[Run] = []

    def make(name: str, engine: str, *options: str) -> Run:
        options = (f"model.path={model}", f"rollout.engine={engine}", *OPTIONS, *options)
        made.append(Run(folder / engine, name, *options))
        return made[-1]

    def is_asked_for(mark: str) -> bool:
        return any(item.get_closest_marker(mark) for item in request.session.items)

    with ThreadPoolExecutor(max_workers=2) as pool:

        def begin(name: str, engine: str, act: Callable[[Run], Run], *options: str) -> Future[Run]:
            return pool.submit(act, make(name, engine, *options))

        is_long, nobody = is_asked_for("long"), Future[Run]()
        lost = begin("disturbed", "transformers", interrupt_and_kill, "metrics=[]") if is_long else nobody
        by_engine = {"transformers": Pair(begin("straight", "transformers", leave_alone), lost)}
        if is_asked_for("vllm"):
            straight = begin("straight", "vllm", leave_alone, *LEAN)
            sleeps = (*LEAN, "rollout.sleep=true")
            lost = begin("disturbed", "vllm", kill_once, *sleeps) if is_long else nobody
            by_engine["vllm"] = Pair(straight, lost)
        yield by_engine
    for run in made:
        run.end()


def leave_alone(run: Run) -> Run:
    assert run.start().finish() == 0, run.output
    return run


def interrupt_and_kill(run: Run) -> Run:
    """Ctrl-C and SIGTERM, to all processes of the group and again from a wrapper; kill -9."""
    run.start()
    for number, iteration in ((signal.SIGINT, 2), (signal.SIGTERM, 5)):
        run.wait_for_iteration(iteration)
        run.signal(number, to_all=True)
        run.signal(number)
        assert run.finish() == 130, run.output
        boundary = max(run.folder.checkpoints())
        assert boundary == run.folder.rollout_info()[-1]["iteration"] < ITERATIONS
        assert "Stopped and saved in" in run.output
        assert run.left_over() == []
        run.start()
    kill_after_a_checkpoint(run, 8)
    return leave_alone(run)


def kill_once(run: Run) -> Run:
    kill_after_a_checkpoint(run.start(), 4)
    return leave_alone(run)


def kill_after_a_checkpoint(run: Run, iteration: int) -> None:
    """Kill -9 once there is something after the checkpoint that will be lost."""
    run.wait_for(f"checkpoint {iteration}", lambda: iteration in run.folder.checkpoints())
    run.wait_for_iteration(iteration + 1)
    run.signal(signal.SIGKILL, to_all=True)
    assert run.finish() == -signal.SIGKILL
    assert run.left_over() == []
    assert max(run.folder.checkpoints()) < ITERATIONS


@pytest.fixture(scope="module")
def done(pairs: dict[str, Pair]) -> Run:
    return pairs["transformers"].straight.result()


def test_a_run_leaves_the_files_of_the_design(done: Run) -> None:
    path = done.folder.path
    epochs = {"val": (0, 8, 16), "test": (0, 16)}

    assert sorted(file.name for file in path.iterdir() if not file.name.startswith(".")) == sorted(
        [
            *("config.yaml", "rollout_info.jsonl", "training_info.jsonl", "log.txt"),
            *("provenance.json", "trackers.json"),
            *("val_split_metrics.jsonl", "test_split_metrics.jsonl"),
            *("checkpoints", "model", "tokens", "report.html", "learning_curves.png"),
            *(
                f"epoch_{n}_{split}_split_predictions.json"
                for split, evaluated in epochs.items()
                for n in evaluated
            ),
        ]
    )
    assert list(done.folder.checkpoints()) == [12, 16]
    for split, evaluated in epochs.items():
        evaluations = done.folder.evaluations(split)
        assert [row["epoch"] for row in evaluations] == list(evaluated)
        assert all(0 <= row["metrics"]["reward/mean"] <= 1 for row in evaluations)
        assert len(done.folder.predictions(evaluated[-1], split)) == 8


def test_the_log_has_what_the_console_noted(done: Run) -> None:
    noted = [line.partition(" notes: ") for line in done.folder.log.read_text().splitlines()]
    assert any(
        time.endswith("INFO") and line.startswith("the rollout workers took") for time, _, line in noted
    )


def test_every_iteration_has_one_line_with_the_names_of_the_design(done: Run) -> None:
    rollout, training = done.folder.rollout_info(), done.folder.training_info()

    assert [row["iteration"] for row in rollout] == list(range(1, ITERATIONS + 1))
    assert [row["iteration"] for row in training] == list(range(1, ITERATIONS + 1))
    assert rollout[0].keys() >= {
        *("reward/mean", "reward/increasing_numbers/mean", "kl/mean", "kl/coefficient"),
        *("response_length/mean", "staleness/mean", "mismatch/kl"),
        *("time/rollout_s", "time/reward_s", "time/score_s", "time/update_s", "time/weights_s"),
        *("time/iteration_s", "throughput/generated_tokens_per_s", "throughput/trained_tokens_per_s"),
        "throughput/sequences_per_s",
    }
    assert training[0].keys() >= {
        *("loss/policy", "loss/value", "entropy", "clip_fraction", "approx_kl", "explained_variance"),
        "gradient_norm/policy",
    }
    assert all(row["rollouts/trained"] == 32 for row in rollout)


@pytest.mark.parametrize("engine", ["transformers", VLLM])
def test_learner_and_sampler_agree_on_every_fresh_token(engine: str, pairs: dict[str, Pair]) -> None:
    """The ratio is one, after each push of new weights."""
    rows = pairs[engine].straight.result().folder.rollout_info()

    assert max(row["mismatch/max_ratio"] for row in rows) < 1 + 1e-4
    assert {row["staleness/mean"] for row in rows} == {0.0}


def test_the_exported_model_is_the_trained_one_with_its_tokenizer(done: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(done.folder.model)
    trained = load_file(done.folder.checkpoint(ITERATIONS) / "policy.safetensors")
    first = load_file(done.folder.path.parents[1] / "model" / "model.safetensors")

    for name, parameter in model.named_parameters():
        assert parameter.equal(trained[f"policy.lm.{name}"])
    assert not model.lm_head.weight.equal(first["lm_head.weight"])
    assert AutoTokenizer.from_pretrained(done.folder.model)("3 5")["input_ids"] == [6, 8]


@pytest.mark.vllm
def test_the_exported_model_is_the_same_in_vllm_and_in_transformers(done: Run) -> None:
    from rollout_workers.engines.vllm_engine import VLLMEngine
    from tests.rollout_workers.generation import (
        SETTINGS,
        finish,
        load_lm,
        prompts_of_many_lengths,
        worst_difference,
    )

    folder = str(done.folder.model)
    requests = prompts_of_many_lengths(8)
    generations = finish(VLLMEngine(folder, folder, None, SETTINGS), requests)

    assert worst_difference(load_lm(done.folder.model), requests, generations) < 1e-4


def test_mlflow_has_the_run_with_its_parameters_metrics_and_files(done: Run) -> None:
    (run,) = tracked(done)

    assert run.info.run_name == "straight" and run.info.status == "FINISHED"
    assert run.data.params["iterations"] == str(ITERATIONS)
    assert run.data.params["task.name"] == "increasing_numbers"
    last = done.folder.rollout_info()[-1]
    assert run.data.metrics["reward/mean"] == pytest.approx(last["reward/mean"])
    assert "val/reward/mean" in run.data.metrics and "loss/policy" in run.data.metrics
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert {path.name for path in artifacts.iterdir()} >= {"config.yaml", "report.html", "samples"}


def tracked(run: Run) -> list[Any]:
    """MLflow's runs of this name."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.folder.path.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'whetstone'")
    tracked_runs = client.search_runs([experiment.experiment_id])
    return [entry for entry in tracked_runs if entry.info.run_name == run.folder.path.name]


def test_a_finished_run_says_that_it_is_done(done: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = (done.folder.path / "rollout_info.jsonl").read_bytes()

    assert train.run(done.command[5:]) == 0

    assert "is done: 16 iterations. Raise iterations= to continue." in capsys.readouterr().out
    assert (done.folder.path / "rollout_info.jsonl").read_bytes() == before


@pytest.mark.long
def test_ctrl_c_sigterm_and_kill_change_nothing_in_the_end(pairs: dict[str, Pair], done: Run) -> None:
    run = pairs["transformers"].disturbed.result()

    assert_same_results(run, done)
    (entry,) = tracked(run)
    assert entry.info.status == "FINISHED"


@pytest.mark.long
@pytest.mark.vllm
def test_a_killed_vllm_run_whose_workers_sleep_goes_on_as_if_nothing_had_been(pairs: dict[str, Pair]) -> None:
    assert_same_results(pairs["vllm"].disturbed.result(), pairs["vllm"].straight.result())


def evaluations(run: Run, split: str) -> list[tuple[int, float, float]]:
    """As the file has them, a line each: one that was made twice would show."""
    rows = read_rows(run.folder.path / f"{split}_split_metrics.jsonl")
    return [(r["epoch"], r["metrics"]["reward/mean"], r["metrics"]["response_length/mean"]) for r in rows]


def assert_same_results(run: Run, straight: Run) -> None:
    assert "resumed from" in run.output
    assert results(run.folder.rollout_info()) == results(straight.folder.rollout_info())
    assert results(run.folder.training_info()) == results(straight.folder.training_info())
    for split in ("val", "test"):
        assert evaluations(run, split) == evaluations(straight, split)
    trained, undisturbed = (load_file(r.folder.model / "model.safetensors") for r in (run, straight))
    assert all(trained[name].equal(undisturbed[name]) for name in undisturbed)
