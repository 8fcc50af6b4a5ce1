"""Arguments that a user adds to vLLM's engine: known to vLLM, and not the run's to decide."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.errors import InputError
from contracts.network.loopback import JOINS_NODES
from contracts.rollout import Sampling
from rollout_workers.engines.base import Request
from rollout_workers.engines.engine_arguments import (
    DECIDED,
    OF_COMPILATION,
    engine_arguments,
    gpu_arguments,
    prepare_environment,
)
from rollout_workers.engines.transformers_engine import TransformersEngine
from rollout_workers.settings import RolloutSettings
from tests.rollout_workers.generation import finish, make_model

OURS_TO_CHANGE = {
    *("enforce_eager", "disable_log_stats"),
    *("max_num_batched_tokens", "kernel_config", "compilation_config"),  # on a GPU
}
GIVEN = {
    "compilation_config": {"mode": 3},
    "cudagraph_capture_sizes": [4],
    "max_cudagraph_capture_size": 4,
    "optimization_level": 0,
    "performance_mode": "throughput",
}


def arguments_of(model: Path, settings: RolloutSettings) -> Any:
    """vLLM's arguments with those of a GPU and the user's."""
    return engine_arguments(
        {"model": str(model), **gpu_arguments(settings.max_concurrent, settings.engine_args)},
        settings.engine_args,
    )


@pytest.mark.parametrize("name", DECIDED)
def test_what_the_run_decides_is_refused_with_what_to_set(name: str) -> None:
    with pytest.raises(ValidationError, match=f"engine_args.{name} is not for the user to set: "):
        RolloutSettings(engine_args={name: 1})


def test_every_way_to_split_over_engines_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"data_parallel_rank is not for the user to set: set rollout"):
        RolloutSettings(engine_args={"data_parallel_rank": 1})


def test_engine_args_are_vllms() -> None:
    with pytest.raises(ValidationError, match="expected engine=vllm or auto"):
        RolloutSettings(engine="transformers", engine_args={"block_size": 32})


def test_the_transformers_engine_takes_none(tmp_path: Path) -> None:
    path = str(make_model(tmp_path, "t5"))
    with pytest.raises(InputError, match="this run generates with transformers"):
        TransformersEngine(path, path, None, RolloutSettings(engine_args={"block_size": 32}))


@pytest.mark.vllm
class TestWithVLLM:
    def test_the_decided_names_are_vllms(self) -> None:
        from vllm.engine.arg_utils import EngineArgs

        assert DECIDED.keys() <= {field.name for field in fields(EngineArgs)}

    def test_what_we_choose_is_refused_or_free_on_purpose(self) -> None:
        from rollout_workers.engines import vllm_engine

        chosen = vllm_engine.chosen_arguments("m", "m", None, RolloutSettings(), None, None)
        on_gpu = gpu_arguments(256, {})
        assert chosen.keys() | on_gpu.keys() <= DECIDED.keys() | OURS_TO_CHANGE

    @pytest.mark.parametrize(
        ("most", "sizes"),
        [
            (512, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
            (2000, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
            (48, [1, 2, 4, 8, 16, 32, 48]),
            (1, [1]),
        ],
    )
    def test_on_a_gpu_vllm_captures_few_graphs_and_warms_up_nothing(
        self, most: int, sizes: list[int], tmp_path: Path
    ) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        made = arguments_of(tmp_path, RolloutSettings(max_concurrent=most))
        compilation = made.compilation_config
        assert made.kernel_config.enable_jit_warmup is False
        assert compilation.mode == CompilationMode.NONE
        assert compilation.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
        assert compilation.cudagraph_capture_sizes == sizes
        assert made.max_num_batched_tokens == 8192

    @pytest.mark.parametrize("name", GIVEN)
    def test_a_users_arguments_about_compilation_replace_the_runs(self, name: str, tmp_path: Path) -> None:
        """Two lists of sizes, for one, are refused by vLLM."""
        from vllm.config import CompilationConfig

        assert GIVEN.keys() == OF_COMPILATION
        settings = RolloutSettings(engine_args={name: GIVEN[name]})
        made = arguments_of(tmp_path, settings)
        plain = engine_arguments({"model": str(tmp_path)}, settings.engine_args)
        assert made.compilation_config == plain.compilation_config
        assert isinstance(made.compilation_config, CompilationConfig)
        assert getattr(made, name) == getattr(plain, name)

    def test_a_users_kernels_stay_the_users(self, tmp_path: Path) -> None:
        settings = RolloutSettings(engine_args={"kernel_config": {"enable_jit_warmup": True}})
        made = arguments_of(tmp_path, settings)
        assert made.kernel_config.enable_jit_warmup is True

    def test_an_unknown_name_gets_the_nearest(self) -> None:
        with pytest.raises(InputError, match=r"engine_args.kv_cache_dtyp: .* did you mean kv_cache_dtype"):
            engine_arguments({"model": "m"}, {"kv_cache_dtyp": "fp8"})

    def test_the_engine_runs_with_them(self, tmp_path: Path) -> None:
        from rollout_workers.engines.vllm_engine import VLLMEngine

        path = str(make_model(tmp_path, "llama"))
        tokens: dict[int | None, Any] = {}
        for most in (None, 64):
            added = {} if most is None else {"max_num_batched_tokens": most}
            settings = RolloutSettings(kv_cache_gib=0.25, engine_args=added, max_concurrent=4)
            engine = VLLMEngine(path, path, 64, settings)
            scheduler = engine._engine.vllm_config.scheduler_config
            assert not scheduler.async_scheduling
            assert most is None or scheduler.max_num_batched_tokens == most
            requests = [Request(n, (5, 6, 7), Sampling(max_tokens=6), seed=n) for n in range(3)]
            tokens[most] = {n: generation.tokens for n, generation in finish(engine, requests).items()}
        assert tokens[None] == tokens[64]


@pytest.mark.parametrize("is_split", [True, False])
def test_nccl_is_kept_to_loopback_where_no_other_node_is_to_be_met(
    monkeypatch: pytest.MonkeyPatch, is_split: bool
) -> None:
    monkeypatch.setattr(os, "environ", {})
    prepare_environment(is_split=is_split)
    assert os.environ["NCCL_SOCKET_IFNAME"].startswith("lo")
    monkeypatch.setattr(os, "environ", {JOINS_NODES: "1"})
    prepare_environment(is_split=is_split)
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    monkeypatch.setattr(os, "environ", {"NCCL_SOCKET_IFNAME": "eth1"})
    prepare_environment(is_split=is_split)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth1"
