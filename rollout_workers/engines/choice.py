"""The rules by which `auto` becomes an engine and a number format."""

import importlib.util


def choose_engine(asked: str, *, is_encoder_decoder: bool, has_vllm: bool | None = None) -> str:
    """Return the engine that `asked` means: `auto` is vLLM where it is installed and knows the model.

    vLLM has no encoder-decoders for text.

    Args:
        has_vllm: whether vLLM is installed; None: look.
    """
    if asked != "auto":
        return asked
    if has_vllm is None:
        has_vllm = importlib.util.find_spec("vllm") is not None
    return "vllm" if has_vllm and not is_encoder_decoder else "transformers"


def choose_dtype(asked: str, *, on_gpu: bool) -> str:
    """Return the number format that `asked` means: `auto` is bfloat16 on a GPU, and float32 on a CPU.

    Less than float32 gains nothing on a CPU.
    """
    if asked != "auto":
        return asked
    return "bfloat16" if on_gpu else "float32"
