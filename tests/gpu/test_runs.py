"""Whole runs on GPUs, by each transport: they end, sampler and learner agree, and no push breaks off."""

from pathlib import Path

import pytest
import torch

from tests.runs import Run

pytestmark = [pytest.mark.gpu, pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(120)]
OPTIONS = (
    "rollout.engine=vllm",
    "rollout.engine_args={enforce_eager: true}",  # a start without graphs; test_engine.py has them
    "iterations=6",
    "rollout.prompts_per_iteration=32",
    "rollout.max_tokens=16",
    "algorithm.num_epochs=1",
    "save_every=0",
    "metrics=[]",
    "tracking.enabled=false",
)
ENDS_WITHIN_S = 100
SHARED = ("cluster=one_gpu",)
WHOLE = ("cluster.learner_gpus=1", "cluster.worker_gpus=1")


@pytest.mark.parametrize(
    ("transport", "places", "num_gpus"),
    [
        ("objects", SHARED, 1),
        ("ipc", SHARED, 1),
        ("objects", WHOLE, 2),
        ("nccl", WHOLE, 2),
        ("nccl", (*WHOLE, "learner.num_processes=2"), 3),
        ("nccl", (*WHOLE, "rollout.tensor_parallel_size=2"), 3),
    ],
)
def test_a_run_ends_and_its_worker_has_the_learner_s_weights(
    transport: str, places: tuple[str, ...], num_gpus: int, model: Path, tmp_path: Path
) -> None:
    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"needs {num_gpus} GPUs")
    run = Run(tmp_path, transport, f"model.path={model}", f"learner.transport={transport}", *places, *OPTIONS)
    try:
        assert run.start().process.wait(ENDS_WITHIN_S) == 0, run.output
    finally:
        run.end()
    assert "broke off" not in run.output and "lost" not in run.output, run.output
    generated = run.folder.rollout_info()
    assert len(generated) == 6
    assert all(row["mismatch/max_ratio"] < 2 and row["mismatch/kl"] < 0.01 for row in generated)
