"""The engine that `auto` means: vLLM, but for a small model on a CPU where nothing asks for vLLM."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollout_workers.engines.choice import SMALL, choose_engine
from services.config.compose import run_settings
from services.models.files import ModelFiles
from services.training.preflight.deployment import Machine, deployment_of

CPU = Machine(num_cores=2.0, num_gpus=0)
FILES = ModelFiles(Path("gpt"), Path("gpt"), {"model_type": "gpt2"}, num_parameters=SMALL)
BEST = choose_engine("auto", is_encoder_decoder=False)  # vllm, where it is installed


def chosen(*overrides: str, machine: Machine = CPU, files: ModelFiles = FILES) -> str:
    return deployment_of(run_settings(["model.path=gpt", *overrides]), files, machine).engine


def test_with_a_small_model_on_a_cpu_transformers_writes() -> None:
    assert chosen() == "transformers"
    assert chosen("rollout.engine=vllm") == "vllm"


@pytest.mark.parametrize("num_parameters", [SMALL + 1, None])
def test_with_a_larger_or_unknown_model_vllm_does(num_parameters: int | None) -> None:
    assert chosen(files=replace(FILES, num_parameters=num_parameters)) == BEST


@pytest.mark.parametrize(
    "machine", [Machine(num_cores=8.0, num_gpus=2), Machine(num_cores=2.0, num_gpus=0, cluster="ray://head")]
)
def test_on_gpus_and_on_a_cluster_that_was_not_asked_yet_too(machine: Machine) -> None:
    assert chosen(machine=machine) == BEST


@pytest.mark.parametrize(
    "overrides",
    [
        ["rollout.engine_args={block_size: 32}"],
        ["rollout.tensor_parallel_size=2"],
        ["learner.transport=gloo"],
        ["model.adapter={kind: lora, serve: adapter}"],
        ["environment=dialogue"],
        ["rollout.max_staleness=1"],
    ],
)
def test_vllm_writes_where_only_it_can_or_where_texts_begin_at_any_time(overrides: list[str]) -> None:
    assert chosen(*overrides) == BEST


def test_encoder_decoders_never_meet_vllm() -> None:
    t5 = {"model_type": "t5", "is_encoder_decoder": True}
    large = replace(FILES, config=t5, num_parameters=SMALL + 1)
    assert chosen(files=large) == "transformers"
