"""GPUs of this machine, and the model that their benchmarks use: Qwen2.5's shape of 0.5B, random weights."""

from pathlib import Path

import torch

from benchmarks.models import made
from benchmarks.qwen_shapes import CONFIGS

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def on_gpu() -> bool:
    return torch.cuda.is_available()


def gpu_name() -> str:
    """Return the first GPU's name, or the word for a machine without one."""
    return torch.cuda.get_device_name(0) if on_gpu() else "no GPU: a rehearsal"


def model() -> Path:
    """Make the model, unless it is there."""
    from transformers import Qwen2Config

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    if on_gpu():
        return made("gpu-qwen2-0.5b", Qwen2Config(**CONFIGS["0.5B"], **ends))
    return made("gpu-qwen2-small", Qwen2Config(**SMALL, **ends))
