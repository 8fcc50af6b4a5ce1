"""Replicas reserve GPUs, and others see none."""

import pytest

from reward_servers.serving.applications import application_of
from reward_servers.settings import ServerSettings, parts


@pytest.mark.parametrize(("num_gpus", "seen"), [(0.0, ""), (0.5, None)])
def test_a_grader_without_a_gpu_of_its_own_sees_none(num_gpus: float, seen: str | None) -> None:
    (metric,) = parts("rouge", "metrics")
    application, _ = application_of("metric", metric, ServerSettings(num_gpus=num_gpus))
    options = application._bound_deployment.ray_actor_options
    assert options["runtime_env"]["env_vars"].get("CUDA_VISIBLE_DEVICES") == seen
