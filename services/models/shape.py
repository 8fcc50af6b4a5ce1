"""Sizes in a model's config.json that memory depends on, under the names that each kind of model uses."""

from dataclasses import dataclass
from typing import Any

from services.models.files import ModelFiles

WIDTH = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads", "encoder_attention_heads")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Example: gpt2 is `ModelShape(width=768, num_layers=12, kv_width=768, vocabulary=50257)`
    """

    width: int
    num_layers: int  # encoder and decoder together
    kv_width: int  # all key heads of a layer together
    vocabulary: int

    def num_parameters(self) -> int:
        """Estimate 12·layers·width² (Kaplan et al. 2020, arXiv 2001.08361, table 1) plus one embedding."""
        return 12 * self.num_layers * self.width**2 + self.vocabulary * self.width

    def cache_bytes(self, bytes_each: int) -> int:
        """Return the bytes of one token's keys and values in all layers, at `bytes_each` a number."""
        return 2 * self.num_layers * self.kv_width * bytes_each


def shape_of(model: ModelFiles) -> ModelShape | None:
    """Read a model's shape; None where its configuration has no known name for width or layers."""
    width, heads = _number(model, *WIDTH), num_heads(model)
    layers = _number(model, *LAYERS)
    if not (width and layers):
        return None
    if model.is_encoder_decoder:
        layers += _number(model, *DECODER_LAYERS) or layers
    head = _number(model, "head_dim", "d_kv") or (width // heads if heads else width)
    kv_heads = _number(model, "num_key_value_heads") or heads or 1
    return ModelShape(width, layers, kv_heads * head, _number(model, "vocab_size"))


def num_heads(model: ModelFiles) -> int:
    """Return the number of attention heads in a layer; 0 when not known."""
    return _number(model, *HEADS)


def _number(model: ModelFiles, *names: str) -> int:
    """Return the first of the named values that is a whole number above 0, else 0."""
    inner: Any = model.config.get("text_config")
    places = (model.config, inner if isinstance(inner, dict) else {})
    found = (place.get(name) for place in places for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)
