"""The plan's words on GPUs: the format of weights, and how the engine steps, each with its reason."""

from typing import Any

import pytest

from benchmarks.gpu_plans import MACHINES, run_of
from benchmarks.qwen_shapes import files_of
from services.training.plan.on_gpus import formats
from services.training.preflight.deployment import Machine, deployment_of


def words_of(machine: Machine, algorithm: str = "grpo", **options: Any) -> dict[str, str]:
    run, files = run_of(algorithm, **options), files_of("0.5B")
    return formats(run.learner, run.model, run.algorithm, deployment_of(run, files, machine))


@pytest.mark.parametrize(
    ("algorithm", "options", "weights", "steps"),
    [
        ("grpo", {}, "bfloat16, with float32 masters", "newer runner, a step ahead: weights change only"),
        (
            "nlpo",
            {"learner": {"autocast": "none"}},
            "float32: products are not in bfloat16",
            "older runner, step by step: algorithm=nlpo masks",
        ),
        (
            "trpo",
            {"rollout": {"engine": "vllm", "max_staleness": 1}},
            "float32: a trust region moves",
            "older runner, step by step: weights change while",
        ),
        ("grpo", {"learner": {"param_dtype": "float32"}}, "float32: as asked for", "newer runner"),
    ],
)
def test_each_format_has_its_reason(
    algorithm: str, options: dict[str, Any], weights: str, steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.training.plan.on_gpus.users_runner", lambda: None)
    words = words_of(MACHINES["1×80 GB"], algorithm, **options)
    assert words["weights"].startswith(weights)
    assert words["the engine steps"].startswith(f"vLLM's {steps}")


def test_without_a_gpu_nothing_is_said() -> None:
    assert words_of(Machine(2.0, 0)) == {}
