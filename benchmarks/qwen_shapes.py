"""Qwen2.5's public shapes, for memory calculations without weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.models.files import ModelFiles
from services.models.shape import shape_of

COMMON = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
}


def _config(
    width: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int, tied: bool
) -> dict[str, Any]:
    return {
        **COMMON,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "0.5B": _config(896, 4864, 24, 14, 2, 151_936, True),
    "1.5B": _config(1536, 8960, 28, 12, 2, 151_936, True),
    "7B": _config(3584, 18944, 28, 28, 4, 152_064, False),
    "32B": _config(5120, 27648, 64, 40, 8, 152_064, False),
}


def files_of(name: str, config: Mapping[str, Any] | None = None) -> ModelFiles:
    """Return ModelFiles as a run reads them, with the shape's number of parameters; no file exists."""
    shape_config = config or CONFIGS[name]
    shape = shape_of(ModelFiles(Path(name), Path(name), shape_config, None))
    assert shape is not None
    return ModelFiles(Path(name), Path(name), shape_config, shape.num_parameters())
