"""Arguments that shorten the start of vLLM's engine on a GPU, and leave its steps as fast."""

from typing import Any

from rollout_workers.settings import RolloutSettings

TOKENS_A_STEP = 8192  # of prompts and responses: vLLM's own choice for batches of texts
MOST_CAPTURED = 512  # sequences in a step that runs as one CUDA graph: vLLM's own limit
# Arguments with which a user decides about compilation and graphs.
OF_COMPILATION = frozenset(
    {
        "compilation_config",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "optimization_level",
        "performance_mode",
    }
)


def gpu_arguments(settings: RolloutSettings) -> dict[str, Any]:
    """Return the engine's arguments that only a GPU needs.

    Decoding runs as whole graphs of vLLM's hand-written kernels. Compiling them costs 20 s of a start and
    saves little, since Python is the limit. The warm-up of kernels prepares top-k and top-p variants, most
    of which no run uses; a kernel that is needed is compiled at its first step.

    A user's own arguments about compilation replace all of these, since vLLM refuses some of them together.
    """
    arguments: dict[str, Any] = {"max_num_batched_tokens": TOKENS_A_STEP}
    if "kernel_config" not in settings.engine_args:
        arguments["kernel_config"] = {"enable_jit_warmup": False}
    if OF_COMPILATION.isdisjoint(settings.engine_args):
        arguments["compilation_config"] = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": capture_sizes(settings.max_concurrent),
        }
    return arguments


def capture_sizes(max_concurrent: int) -> list[int]:
    """Return the numbers of sequences for which graphs are captured: powers of 2, and the most there can be.

    A step of fewer sequences is padded to the next size, which costs little where Python is the limit.

    >>> capture_sizes(512)
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    >>> capture_sizes(48), capture_sizes(4000)[-1], capture_sizes(1)
    ([1, 2, 4, 8, 16, 32, 48], 512, [1])
    """
    most = min(max_concurrent, MOST_CAPTURED)
    return [*(2**power for power in range(MOST_CAPTURED.bit_length()) if 2**power < most), most]
