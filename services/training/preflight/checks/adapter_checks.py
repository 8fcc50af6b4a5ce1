"""Check that an adapter fits algorithm, model and engine; estimate the sizes of adapter and base."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.models.adapter_settings import AdapterSettings
from rollout_workers.engines.traits import traits_of
from services.models.files import ModelFiles

FROZEN_BYTES = 4  # float32
QUANTIZED_BYTES = 0.52  # 4 bits; 64 numbers share a scale of 8 bits, and 256 scales share one of 32 bits
USUAL_WIDTH = 768  # width of a configuration without one


def check_adapter(
    adapter: AdapterSettings,
    algorithm: Algorithm,
    algorithm_name: str,
    engine: str,
    model: ModelFiles,
    *,
    plays_programs: bool = False,
) -> None:
    """Reject an adapter that algorithm, model or engine can't use.

    Args:
        engine: the user's rollout.engine.
        plays_programs: whether the environment's episodes are programs, which can have roles.

    Raises:
        InputError: a package is missing, or the algorithm or the engine can't take the adapter.
    """
    adapter.check_installed()
    if adapter.kind == "qlora" and algorithm.traits.update == "trust_region":
        raise InputError(
            f"model.adapter.kind={adapter.kind}: algorithm={algorithm_name} needs forward-mode derivatives, "
            "but products with 4-bit weights have none; expected model.adapter.kind=lora, or algorithm=ppo"
        )
    if adapter.roles and not plays_programs:
        raise InputError(
            f"model.adapter.roles={list(adapter.roles)}: only programs have roles, by "
            "model=policy/NAME in their calls; expected environment=program (docs/agents.md), or "
            "model.adapter.roles=[]"
        )
    if adapter.serve == "merged":
        return
    reason = ""
    if algorithm.traits.masks:
        reason = f"algorithm={algorithm_name} generates with two models in one engine"
    elif model.is_encoder_decoder:
        reason = f"vLLM can't run an encoder-decoder ({model.config.get('model_type')})"
    elif not traits_of(engine).serves_adapters:
        reason = f"rollout.engine={engine} serves no adapters"
    if reason:
        raise InputError(f"model.adapter.serve=adapter: {reason}; expected model.adapter.serve=merged")


def trained_share(adapter: AdapterSettings, model: ModelFiles) -> float:
    """Return the adapter's share of the model's parameters: about r·(in + out) for a matrix of in·out."""
    width = _number(model, "hidden_size", "n_embd", "d_model") or USUAL_WIDTH
    return min(1.0, 2 * adapter.r * max(1, len(adapter.roles)) / width)


def base_bytes(adapter: AdapterSettings, model: ModelFiles, num_parameters: int) -> float:
    """Return the bytes of the learner's frozen model below the adapter.

    With LoRA all weights are float32. With QLoRA the embeddings and the output head are float32, and all
    other weights have 4 bits.
    """
    if adapter.kind == "lora":
        return FROZEN_BYTES * num_parameters
    tables = 1 if model.config.get("tie_word_embeddings", True) else 2
    width = _number(model, "hidden_size", "n_embd", "d_model") or USUAL_WIDTH
    embeddings = min(num_parameters, tables * width * _number(model, "vocab_size"))
    return FROZEN_BYTES * embeddings + QUANTIZED_BYTES * (num_parameters - embeddings)


def _number(model: ModelFiles, *names: str) -> int:
    """Return the first of these numbers in the model's configuration, else 0."""
    inner = model.config.get("text_config", {})
    numbers = (model.config.get(name, inner.get(name)) for name in names)
    return next((number for number in numbers if isinstance(number, int)), 0)
