"""The rules by which `auto` becomes an engine and a number format."""

import importlib.util

SMALL = 10_000_000  # parameters: up to so many, transformers writes faster on a CPU (docs/results/speed.md)


def choose_engine(
    asked: str, *, is_encoder_decoder: bool, prefers_transformers: bool = False, has_vllm: bool | None = None
) -> str:
    """Return the engine that `asked` means: `auto` is vLLM where it is there, knows the model, and is fast.

    vLLM has no encoder-decoders for text.

    Args:
        prefers_transformers: both engines can do what is asked, and transformers does it faster.
        has_vllm: whether vLLM is installed; None: look.
    """
    if asked != "auto":
        return asked
    if is_encoder_decoder or prefers_transformers:
        return "transformers"
    if has_vllm is None:
        has_vllm = importlib.util.find_spec("vllm") is not None
    return "vllm" if has_vllm else "transformers"


def choose_dtype(asked: str, *, on_gpu: bool) -> str:
    """Return the number format that `asked` means: `auto` is bfloat16 on a GPU, and float32 on a CPU.

    On a CPU float32 makes engine and learner agree. bfloat16 is faster on processors that multiply it.
    """
    if asked != "auto":
        return asked
    return "bfloat16" if on_gpu else "float32"
