"""Load a transformers language model, with or without its weights."""

from typing import Any

import torch

from contracts.activations import fuse_activations
from contracts.errors import InputError
from contracts.processes.loading import ONE_MODEL_AT_A_TIME
from learner.distributed.stored_weights import StoredWeights, empty_model
from learner.models import dropout
from learner.models.attention import attend_in_float32
from learner.models.quantization import compute_in_float32, quantized_loading
from learner.settings import ModelSettings

CPU = torch.device("cpu")


def load_language_model(
    settings: ModelSettings, device: torch.device = CPU, *, drops_out: bool = False
) -> Any:
    """Load a model in float32; an adapter's 4-bit base is made on `device`.

    Args:
        drops_out: if True, training mode uses the model's dropout. False: every rate is 0, because dropout
            makes ratios noisy and destabilises reinforcement learning.

    Raises:
        InputError: the model is neither causal nor an encoder-decoder.
    """
    config, kind = _config_and_kind(settings, drops_out)
    try:
        with ONE_MODEL_AT_A_TIME:
            lm = kind.from_pretrained(
                settings.path,
                revision=settings.revision,
                config=config,
                dtype=torch.float32,
                **quantized_loading(settings.adapter, device),
                trust_remote_code=False,
            )
    except ValueError as error:
        raise InputError(f"model.path={settings.path}: {error}") from None
    return _prepared(lm)


def load_for_ranks(settings: ModelSettings, *, drops_out: bool = False) -> tuple[Any, StoredWeights | None]:
    """Load a model whose rows each rank reads later; None: the model was loaded whole.

    Raises:
        InputError: as for `load_language_model`.
    """
    config, kind = _config_and_kind(settings, drops_out)
    try:
        with ONE_MODEL_AT_A_TIME:
            made = empty_model(kind, config, settings)
    except ValueError as error:
        raise InputError(f"model.path={settings.path}: {error}") from None
    if made is None:
        return load_language_model(settings, drops_out=drops_out), None
    lm, stored = made
    return _prepared(lm), stored


def _config_and_kind(settings: ModelSettings, drops_out: bool) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(settings.path, revision=settings.revision, trust_remote_code=False)
    if not drops_out:
        dropout.switch_off(config)
    return config, AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _prepared(lm: Any) -> Any:
    compute_in_float32(lm)
    fuse_activations(lm)
    attend_in_float32()
    return lm.eval()
