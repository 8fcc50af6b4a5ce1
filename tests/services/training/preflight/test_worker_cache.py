"""Keys and values of a worker on a GPU: what its share leaves beside weights, a step and graphs."""

from typing import Any

import pytest

from benchmarks.gpu_plans import MACHINES, run_of
from benchmarks.qwen_shapes import files_of
from contracts.settings import with_options
from services.training.preflight.capacity.gpu_defaults import fitted
from services.training.preflight.capacity.worker_cache import cache_bytes
from services.training.preflight.deployment import Machine, deployment_of

ONE = MACHINES["1×80 GB"]


def bytes_of(machine: Machine, model: str = "0.5B", **options: Any) -> int | None:
    run, _ = fitted(with_options(run_of(), options), files_of(model), machine)
    return cache_bytes(run, files_of(model), deployment_of(run, files_of(model), machine))


def test_it_is_the_share_without_weights_a_step_and_graphs() -> None:
    """Qwen2.5 of 0.5B by hand: 494.0 M parameters, width 896, inner width 4864, vocabulary 151936."""
    num_bytes = bytes_of(ONE, **{"rollout.gpu_memory_utilization": 0.5, "rollout.max_concurrent": 512})
    weights = 2 * 494_032_768
    step = 8192 * 2 * (3 * 4864 + 4 * 896)
    logits = 512 * 151936 * (8 + 20)
    assert num_bytes is not None
    assert num_bytes == pytest.approx(0.5 * 80e9 - weights - step - logits - 2**29, rel=1e-3)


def test_it_grows_with_the_share_by_as_much() -> None:
    half, more = (bytes_of(ONE, **{"rollout.gpu_memory_utilization": share}) for share in (0.5, 0.55))
    assert half and more and more - half == pytest.approx(0.05 * 80e9, abs=2)


@pytest.mark.parametrize(
    ("machine", "options"),
    [
        (Machine(2.0, 0), {}),
        (Machine(16.0, 1, nodes=(1,)), {}),  # a GPU whose size nobody knows
        (ONE, {"rollout.engine_args": {"quantization": "fp8"}}),
        (ONE, {"rollout.engine": "transformers"}),
        (ONE, {"model.adapter.kind": "lora", "model.adapter.serve": "adapter"}),
    ],
)
def test_what_is_not_known_is_left_to_vllm(machine: Machine, options: dict[str, Any]) -> None:
    assert bytes_of(machine, **options) is None
