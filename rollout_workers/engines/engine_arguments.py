"""vLLM's engine arguments: the run's settings give some, and a user adds others."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from contracts.errors import InputError
from contracts.network.loopback import GLOO, NCCL, joins_nodes, stay_on_loopback

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

KEY = "rollout.engine_args"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # 1: vLLM's newer model runner; 0: the older one
EACH_ALONE = "set rollout.num_workers: each worker has a whole model"
# Arguments with which an engine computes less exactly than its dtype promises
ROUND = frozenset({"quantization", "kv_cache_dtype"})
# Arguments that a run decides, with the setting to use, or the reason why none exists.
DECIDED: Mapping[str, str] = {
    "model": "set model.path",
    "tokenizer": "set model.tokenizer",
    "revision": "set model.revision",
    "tokenizer_revision": "set model.revision",
    "max_model_len": "set rollout.max_prompt_tokens and rollout.max_tokens",
    "max_num_seqs": "set rollout.max_concurrent",
    "dtype": "set rollout.dtype",
    "gpu_memory_utilization": "set rollout.gpu_memory_utilization",
    "kv_cache_memory_bytes": "set rollout.kv_cache_gib",
    "enable_sleep_mode": "set rollout.sleep",
    "tensor_parallel_size": "set rollout.tensor_parallel_size",
    "pipeline_parallel_size": EACH_ALONE,
    "prefill_context_parallel_size": "set rollout.tensor_parallel_size",
    "decode_context_parallel_size": "set rollout.tensor_parallel_size",
    "nnodes": "set rollout.num_workers: a worker's GPUs are on one node",
    "node_rank": "set rollout.num_workers: a worker's GPUs are on one node",
    "hf_config_path": "set model.path",
    "model_weights": "set model.path",
    "skip_tokenizer_init": "texts are read and written by the model's tokenizer",
    "runner": "a rollout worker generates",
    "convert": "a rollout worker generates",
    "distributed_executor_backend": "rollout.tensor_parallel_size decides it",
    "enable_lora": "set model.adapter",
    "max_loras": "set model.adapter",
    "max_lora_rank": "set model.adapter",
    "seed": "each rollout has a seed of its own, by `seed`",
    "generation_config": "the run's settings alone decide how tokens are drawn",
    "override_generation_config": "the run's settings alone decide how tokens are drawn",
    "logprobs_mode": "losses need the log-probabilities of the sampled distribution",
    "logits_processors": "they would change the sampled distribution, and the learner would not know",
    "enable_prefix_caching": "pushes invalidate the cache by its salt, so it is always on",
    "enable_chunked_prefill": "with seeds it works on GPUs alone, where it is on",
    "async_scheduling": "steps run ahead where weights change only between batches",
    "load_format": "weights come as safetensors, and then by pushes",
    "weight_transfer_config": "set learner.transport",
    "worker_cls": "it would run other code in the worker",
    "worker_extension_cls": "it would run other code in the worker",
    "scheduler_cls": "it would run other code in the worker",
    "trust_remote_code": "it would run code that comes with the model",
}

TOKENS_A_STEP = 8192  # tokens of prompts and responses in a step; vLLM's choice for batches of texts
MOST_CAPTURED = 512  # sequences in a step that runs as one CUDA graph; vLLM's limit
# Arguments by which a user decides about compilation and graphs.
OF_COMPILATION = frozenset(
    {
        "compilation_config",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "optimization_level",
        "performance_mode",
    }
)


def refuse_decided(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the run decides.

    Raises:
        ValueError: a refused argument is given; the message names the setting to use.
    """
    for name in arguments:
        why = EACH_ALONE if name.startswith("data_parallel_") else DECIDED.get(name)
        if why:
            raise ValueError(f"engine_args.{name} is not for the user to set: {why}")


def engine_arguments(
    chosen: Mapping[str, Any], added: Mapping[str, Any], kind: "type[EngineArgs] | None" = None
) -> "EngineArgs":
    """Return vLLM's arguments: the run's choices and the user's additions.

    Args:
        kind: a vLLM class with more arguments; None: EngineArgs.

    Raises:
        InputError: vLLM does not know an argument, or refuses its value.
    """
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in fields(EngineArgs)}
    for name in added:
        if name not in known:
            near = difflib.get_close_matches(name, known - DECIDED.keys(), n=3)
            meant = f"did you mean {' or '.join(near)}?" if near else "see vLLM's EngineArgs for their names"
            raise InputError(f"{KEY}.{name}: vLLM has no such engine argument; {meant}")
    try:
        return (kind or EngineArgs)(**{**chosen, **added})
    except (TypeError, ValueError) as error:
        if not added:
            raise
        raise InputError(f"{KEY}={dict(added)}: vLLM refuses it: {error}") from None


def gpu_arguments(max_concurrent: int, added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's arguments that only a GPU needs; they shorten its start.

    Decoding runs as whole graphs of vLLM's hand-written kernels. Compiling them costs 20 s at the start and
    saves little, because Python is the limit. The warm-up of kernels prepares top-k and top-p variants that
    most runs never use. A needed kernel is compiled at its first step.

    A user's arguments about compilation replace all of these, because vLLM refuses some combinations.
    """
    arguments: dict[str, Any] = {"max_num_batched_tokens": TOKENS_A_STEP}
    if "kernel_config" not in added:
        arguments["kernel_config"] = {"enable_jit_warmup": False}
    if OF_COMPILATION.isdisjoint(added):
        arguments["compilation_config"] = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": capture_sizes(max_concurrent),
        }
    return arguments


def capture_sizes(max_concurrent: int) -> list[int]:
    """Return the numbers of sequences for which graphs are captured: powers of 2, and the highest number.

    A step of fewer sequences is padded to the next size, which costs little if Python is the limit.

    >>> capture_sizes(512)
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    >>> capture_sizes(48), capture_sizes(4000)[-1], capture_sizes(1)
    ([1, 2, 4, 8, 16, 32, 48], 512, [1])
    """
    most = min(max_concurrent, MOST_CAPTURED)
    return [*(2**power for power in range(MOST_CAPTURED.bit_length()) if 2**power < most), most]


def prepare_environment(*, is_split: bool = False, on_gpu: bool = False, is_newer: bool = False) -> None:
    """Set the environment variables that vLLM reads at its first import; a user's values win.

    Args:
        is_split: whether the model is split over processes of this machine, which then listen on loopback.
        on_gpu: whether vLLM runs on a GPU; there its warnings are shown, because fewer runs have tried it.
        is_newer: whether vLLM may use its newer model runner, which needs Triton.
    """
    if is_split:
        stay_on_loopback(GLOO)
    if not joins_nodes():  # NCCL reads the variable once, and the learner may be on another node
        stay_on_loopback(NCCL)
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING" if on_gpu else "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        **({} if is_newer else {RUNNER: "0"}),
    }.items():
        os.environ.setdefault(name, value)
