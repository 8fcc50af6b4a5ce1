"""Workers that sleep while the learner updates: when they are told to, and that a run is the same run."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from benchmarks.qwen_shapes import files_of
from contracts.errors import InputError
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.training.preflight.capacity.gpu_defaults import fitted
from services.training.preflight.deployment import Machine
from tests.local_run import LocalWorkers, train_here
from tests.models import make_tiny_model
from tests.runs import results
from tests.services.training.loop.test_controller import Loop

SLEEPS = {"rollout": {"prompts_per_iteration": 2, "max_tokens": 4, "sleep": True}}


def test_right_before_each_update_and_never_else(tmp_path: Path) -> None:
    calls = Loop(tmp_path, **SLEEPS).run().calls
    names = [name for name, _ in calls]

    assert names.count("sleep") == names.count("update") == 4
    assert all(names[at - 1] == "sleep" for at, name in enumerate(names) if name == "update")


def test_nobody_who_was_not_asked_to_sleeps(tmp_path: Path) -> None:
    assert "sleep" not in {name for name, _ in Loop(tmp_path).run().calls}


@pytest.mark.parametrize(
    ("name", "num_gpus", "expected"),
    [
        *(("default", 0, False), ("default", 1, True), ("default", 2, False), ("laptop", 1, True)),
        *(("one_gpu", 2, True), ("disaggregated", 4, False), ("nodes", 5, False)),
    ],
)
def test_where_one_gpu_is_shared_they_sleep(name: str, num_gpus: int, expected: bool) -> None:
    run = run_settings([f"cluster={name}", "model.path=some/model", "rollout.engine=vllm"])
    machine = Machine(8.0, num_gpus, gpu_bytes=80e9)
    assert fitted(run, files_of("0.5B"), machine)[0].rollout.sleep is expected


def test_who_writes_ahead_can_not_sleep_meanwhile() -> None:
    with pytest.raises(InputError, match=r"max_staleness=2: workers that write ahead"):
        run_settings(["rollout.sleep=true", "model.path=some/model", "rollout.max_staleness=2"])
    ahead = ["cluster=one_gpu", "model.path=m", "rollout.max_staleness=2"]
    assert run_settings(ahead).rollout.max_staleness == 2


# Whole runs


def settings(model: Path, output: Path, algorithm: str, sleep: bool) -> RunSettings:
    overrides = (
        *(f"model.path={model}", f"output_dir={output}", f"run_name=sleep-{sleep}", f"algorithm={algorithm}"),
        *("task=increasing_numbers", "task.num_prompts=16", "task.num_eval_prompts=4", "iterations=3"),
        *("rollout.prompts_per_iteration=8", "rollout.max_tokens=8", "rollout.kv_cache_gib=0.01"),
        *("rollout.engine=transformers", "rollout.deterministic=true", "rollout.num_threads=1"),
        *(f"rollout.sleep={str(sleep).lower()}", "learner.num_threads=1", "learner.device=cpu"),
        *("algorithm.learning_rate=1e-2", "evaluate_every=2", "tracking.enabled=false", "metrics=[]"),
    )
    return run_settings(list(overrides))


@pytest.mark.parametrize("algorithm", ["ppo", "nlpo"])
def test_a_run_whose_workers_sleep_is_to_the_bit_the_one_whose_workers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    model = make_tiny_model(tmp_path / "model")
    naps: list[LocalWorkers] = []
    sleep = LocalWorkers.sleep

    def counted(self: LocalWorkers) -> None:
        naps.append(self)
        sleep(self)

    monkeypatch.setattr(LocalWorkers, "sleep", counted)
    awake, slept = (train_here(settings(model, tmp_path, algorithm, sleeping)) for sleeping in (False, True))

    assert len(naps) == 3
    assert results(slept.rollout_info()) == results(awake.rollout_info())
    assert results(slept.training_info()) == results(awake.training_info())
    assert read(slept) == read(awake)
    weights, expected = (load_file(run.model / "model.safetensors") for run in (slept, awake))
    assert all(weights[name].equal(tensor) for name, tensor in expected.items())


def read(run: RunFolder) -> list[Any]:
    """Its evaluations, and what was written in them."""
    return [(run.evaluations(split), [run.predictions(3, split)]) for split in ("validation", "test")]
