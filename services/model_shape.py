"""The few numbers of a model's config.json that memory depends on, under whatever names it has them."""

from dataclasses import dataclass
from typing import Any

from services.model_files import ModelFiles

WIDTH = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads", "encoder_attention_heads")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Example: gpt2 is `ModelShape(width=768, num_layers=12, kv_width=768, vocabulary=50257)`."""

    width: int
    num_layers: int  # encoder's and decoder's together
    kv_width: int  # of all key heads of a layer, next to each other
    vocabulary: int

    def num_parameters(self) -> int:
        """About: 12·layers·width² (Kaplan et al. 2020, arXiv 2001.08361, table 1) and one embedding."""
        return 12 * self.num_layers * self.width**2 + self.vocabulary * self.width

    def cache_bytes(self, bytes_each: int) -> int:
        """Keys and values of one token, in all layers."""
        return 2 * self.num_layers * self.kv_width * bytes_each


def shape_of(model: ModelFiles) -> ModelShape | None:
    """None where its configuration has no names for them that are known here."""
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
    """Of a layer's attention; 0: not known."""
    return _number(model, *HEADS)


def _number(model: ModelFiles, *names: str) -> int:
    """The first of these that the configuration has as a whole number above 0, else 0."""
    inner: Any = model.config.get("text_config")
    places = (model.config, inner if isinstance(inner, dict) else {})
    found = (place.get(name) for place in places for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)
