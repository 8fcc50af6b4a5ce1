"""The layers at which a training service's model has its adapter."""

from typing import Any

from torch import nn

from contracts.errors import InputError
from learner.models.adapter_settings import AdapterSettings
from learner.training_service.spec import ModelSpec

ALPHA = 32  # an adapter's alpha at every rank, as in Tinker
ATTENTION = ("attn", "attention", "self_attn")  # names in a layer's path


def adapter_settings(spec: ModelSpec, layers: list[str]) -> AdapterSettings:
    """Return the adapter's settings; `layers` are the paths of the base's linear layers.

    Raises:
        InputError: no layer is left to train.
    """
    assert spec.rank is not None, "a model that trains all its weights has no adapter"
    chosen = tuple(path for path in layers if spec.train_attn if _is_attention(path)) + tuple(
        path for path in layers if spec.train_mlp if not _is_attention(path)
    )
    if not chosen:
        raise InputError(
            f"train_attn={spec.train_attn}, train_mlp={spec.train_mlp}: no layer would train, because "
            "the head has no adapter here; set one of them to true"
        )
    return AdapterSettings(kind="lora", r=spec.rank, lora_alpha=ALPHA, target_modules=_short(chosen, layers))


def linear_layers(lm: Any) -> list[str]:
    """Return the paths of the linear layers, except the head."""
    head = lm.get_output_embeddings()
    return [
        path
        for path, module in lm.named_modules()
        if (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D") and module is not head
    ]


def _is_attention(path: str) -> bool:
    """Return whether a layer belongs to an attention block.

    >>> _is_attention("model.layers.0.self_attn.q_proj"), _is_attention("transformer.h.0.mlp.c_proj")
    (True, False)
    """
    return any(part in ATTENTION or part.endswith("attention") for part in path.split("."))


def _short(chosen: tuple[str, ...], layers: list[str]) -> tuple[str, ...]:
    """Return the ends of the chosen paths if no other path has the same end; else the paths.

    >>> _short(("0.attn.q", "1.attn.q"), ["0.attn.q", "0.mlp.up", "1.attn.q", "1.mlp.up"])
    ('q',)
    """
    ends = {path.rpartition(".")[2] for path in chosen}
    others = {path.rpartition(".")[2] for path in set(layers) - set(chosen)}
    return chosen if ends & others else tuple(sorted(ends))
