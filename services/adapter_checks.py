"""What an adapter asks of algorithm, model and engine, and what memory its frozen base takes."""

from contracts.errors import InputError
from learner.algorithms.base import Masks
from learner.algorithms.trpo import TRPO
from services.model_files import ModelFiles
from services.settings import RunSettings

FROZEN_BYTES = 4  # float32
QUANTIZED_BYTES = 0.52  # 4 bits, for each 64 of them a scale of 8 bits, and for each 256 scales one of 32
USUAL_WIDTH = 768  # where the configuration has no name for it that is known here


def check_adapter(settings: RunSettings, model: ModelFiles) -> None:
    """Refuse what can't be done with an adapter.

    Raises:
        InputError: what it needs is not installed, or the algorithm or the engine can't take it.
    """
    adapter, where = settings.model.adapter, f"model.adapter.kind={settings.model.adapter.kind}"
    adapter.check_installed()
    if adapter.kind == "qlora" and isinstance(settings.algorithm, TRPO):
        raise InputError(
            f"{where}: algorithm={settings.algorithm_name} needs forward-mode derivatives, and products with "
            "4-bit weights have none; expected model.adapter.kind=lora, or algorithm=ppo"
        )
    if adapter.serve == "merged":
        return
    reason = ""
    if isinstance(settings.algorithm, Masks):
        reason = f"algorithm={settings.algorithm_name} generates with two models in one engine"
    elif model.is_encoder_decoder:
        reason = f"vLLM can't run an encoder-decoder ({model.config.get('model_type')})"
    elif settings.rollout.engine == "transformers":
        reason = "rollout.engine=transformers serves none"
    if reason:
        raise InputError(f"model.adapter.serve=adapter: {reason}; expected model.adapter.serve=merged")


def trained_share(settings: RunSettings, model: ModelFiles) -> float:
    """The adapter's numbers as a share of the model's, roughly: r·(in + out) for each matrix of in·out."""
    width = _number(model, "hidden_size", "n_embd", "d_model") or USUAL_WIDTH
    return min(1.0, 2 * settings.model.adapter.r / width)


def base_bytes(settings: RunSettings, model: ModelFiles, num_parameters: int) -> float:
    """What the learner's frozen base takes; embeddings and head are not quantised."""
    if settings.model.adapter.kind == "lora":
        return FROZEN_BYTES * num_parameters
    tables = 1 if model.config.get("tie_word_embeddings", True) else 2
    width = _number(model, "hidden_size", "n_embd", "d_model") or USUAL_WIDTH
    embeddings = min(num_parameters, tables * width * _number(model, "vocab_size"))
    return FROZEN_BYTES * embeddings + QUANTIZED_BYTES * (num_parameters - embeddings)


def _number(model: ModelFiles, *names: str) -> int:
    """The first of these numbers that the model's configuration has, else 0."""
    inner = model.config.get("text_config", {})
    found = (model.config.get(name, inner.get(name)) for name in names)
    return next((number for number in found if isinstance(number, int)), 0)
