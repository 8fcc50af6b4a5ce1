"""Sizes in a model's config.json that determine memory, under each model kind's names."""

from dataclasses import dataclass
from typing import Any

from services.models.files import ModelFiles

WIDTH = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads", "encoder_attention_heads")
INNER = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "decoder_ffn_dim")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Example: gpt2 is `ModelShape(width=768, num_layers=12, query_width=768, kv_width=768, inner_width=3072,
    vocabulary=50257, is_gated=False, is_tied=True)`.
    """

    width: int
    num_layers: int  # encoder and decoder together
    query_width: int  # all query heads of a layer together
    kv_width: int  # all key heads of a layer together
    inner_width: int  # width between the two products of a layer's feed-forward part
    vocabulary: int
    is_gated: bool  # SwiGLU with RMSNorm, as Llama and Qwen; else GELU with LayerNorm, as GPT-2
    is_tied: bool  # the head is the embedding

    @property
    def layer_parameters(self) -> int:
        """Count the numbers in a layer's matrices, without the few in norms and biases."""
        attention = 2 * self.width * (self.query_width + self.kv_width)
        return attention + (3 if self.is_gated else 2) * self.width * self.inner_width

    @property
    def table_parameters(self) -> int:
        """Count the numbers in the token embedding and an untied head."""
        return (1 if self.is_tied else 2) * self.vocabulary * self.width

    def num_parameters(self) -> int:
        """Estimate the number of all parameters within a few per cent."""
        return self.num_layers * self.layer_parameters + self.table_parameters

    def cache_bytes(self, bytes_each: int) -> int:
        """Return the bytes of one token's keys and values in all layers, at `bytes_each` a number."""
        return 2 * self.num_layers * self.kv_width * bytes_each


def shape_of(model: ModelFiles) -> ModelShape | None:
    """Read a model's shape; None if its configuration has no known name for width or layers."""
    width, heads = _number(model, *WIDTH), num_heads(model)
    layers = _number(model, *LAYERS)
    if not (width and layers):
        return None
    if model.is_encoder_decoder:
        layers += _number(model, *DECODER_LAYERS) or layers
    is_gated = "rms_norm_eps" in _inner(model)
    head = _number(model, "head_dim", "d_kv") or (width // heads if heads else width)
    return ModelShape(
        width=width,
        num_layers=layers,
        query_width=(heads or 1) * head,
        kv_width=(_number(model, "num_key_value_heads") or heads or 1) * head,
        inner_width=_number(model, *INNER) or 4 * width,
        vocabulary=_number(model, "vocab_size"),
        is_gated=is_gated,
        # transformers' defaults: Llama-like models do not tie the head to the embedding
        is_tied=bool(model.config.get("tie_word_embeddings", not is_gated)),
    )


def num_heads(model: ModelFiles) -> int:
    """Return the number of attention heads in a layer; 0 if unknown."""
    return _number(model, *HEADS)


def _inner(model: ModelFiles) -> dict[str, Any]:
    """Merge the configuration over its inner text model's configuration."""
    inner = model.config.get("text_config")
    return {**(inner if isinstance(inner, dict) else {}), **model.config}


def _number(model: ModelFiles, *names: str) -> int:
    """Return the first named value that is a whole number above 0, else 0."""
    inner: Any = model.config.get("text_config")
    places = (model.config, inner if isinstance(inner, dict) else {})
    numbers = (place.get(name) for place in places for name in names)
    return next((n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)
