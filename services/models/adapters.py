"""Open an adapter at `model.path` as a whole model, or as base and adapter to train further.

model.path=ADAPTER                  ─▶ path=BASE, adapter.path=ADAPTER     the adapter is trained further
model.path=ADAPTER model.merge=true ─▶ path=the merged model's folder      other keys of model= stay
"""

from typing import Any

from contracts.adapters.folder import BY_MODULE, AdapterFolder, adapter_at, why_not_trained
from contracts.adapters.merging import in_words, merged_folder, whole_model
from contracts.errors import InputError
from contracts.settings import with_options
from learner.models.adapter_settings import AdapterSettings
from learner.settings import ModelSettings

PEFTS_DEFAULT = 8  # default rank and scale
MERGE = "model.merge=true merges it first; then the whole model trains, or a new adapter"


def for_training(model: ModelSettings) -> ModelSettings:
    """Return the model with local files: a whole model, or a base and its trained adapter.

    Raises:
        InputError: the adapter can't be used or trained further, or an option needs an adapter.
    """
    model = _with_reference(model)
    adapter = _asked(model)
    if adapter is None:
        return model
    if model.merge:
        return _merged(model, adapter)
    if model.trainable_layers is not None:
        raise InputError(
            f"model.trainable_layers={model.trainable_layers}: model.path={model.path} is an adapter, whose "
            "own matrices train. model.merge=true merges it first"
        )
    if adapter_at(adapter.base, adapter.base_revision, where="model.base") is not None:
        raise InputError(f"model.path={adapter.name} is an adapter on the adapter {adapter.base}. {MERGE}")
    if reason := why_not_trained(adapter):
        raise InputError(
            f"model.path={adapter.name} is an adapter with {reason}, which is not trained further. {MERGE}"
        )
    return with_options(
        model,
        {
            "path": adapter.base,
            "revision": adapter.base_revision,
            "base": None,
            "tokenizer": model.tokenizer or (str(adapter.folder) if adapter.has_tokenizer else None),
            "adapter": _continued(model.adapter, adapter),
        },
    )


def for_use(model: ModelSettings, key: str = "model.path") -> ModelSettings:
    """Return the whole model before training, with any adapter merged.

    Args:
        key: the option that names it, for messages.

    Raises:
        InputError: like `for_training`, without the checks for training.
    """
    model = _with_reference(model)
    adapter = _asked(model, key)
    return model if adapter is None else _merged(model, adapter, key)


def model_in_words(model: ModelSettings) -> str:
    """Return the model's display name, with base and adapter if it has both."""
    if model.adapter.path is not None:
        return f"the adapter {model.adapter.path} on {model.path}"
    return in_words(model.path)


def _asked(model: ModelSettings, key: str = "model.path") -> AdapterFolder | None:
    """Return the adapter named by `path`, or by `adapter.path` beside its base; None for a whole model."""
    if model.adapter.path is not None:
        base = {"base": model.path, "base_revision": model.revision}
        return adapter_at(model.adapter.path, where="model.adapter.path", **base) or _no_adapter(model)
    adapter = adapter_at(model.path, model.revision, model.base, key)
    if adapter is None and model.merge:
        raise InputError(
            f"model.merge=true merges an adapter, and model.path={model.path} has no adapter_config.json: "
            "expected a peft folder, or no model.merge"
        )
    return adapter


def _no_adapter(model: ModelSettings) -> AdapterFolder:
    raise InputError(
        f"model.adapter.path={model.adapter.path} has no adapter_config.json: expected a peft folder"
    )


def _merged(model: ModelSettings, adapter: AdapterFolder, key: str = "model.path") -> ModelSettings:
    changed: dict[str, Any] = {
        "path": str(merged_folder(adapter, key)),
        "revision": None,
        "base": None,
        "merge": False,
    }
    if model.adapter.path is not None:
        changed["adapter"] = AdapterSettings()
    return with_options(model, changed)


def _with_reference(model: ModelSettings) -> ModelSettings:
    path = model.reference.path
    if path is None:
        return model
    whole = whole_model(path, model.reference.revision, where="model.reference.path")
    return (
        model if whole == path else with_options(model, {"reference.path": whole, "reference.revision": None})
    )


def _continued(settings: AdapterSettings, adapter: AdapterFolder) -> AdapterSettings:
    """Return the settings of an adapter for further training.

    Raises:
        InputError: the command's rank, scale or layers differ from the adapter's.
    """
    config, usual = adapter.config, AdapterSettings()
    rank, alpha = (config.get(key) or PEFTS_DEFAULT for key in ("r", "lora_alpha"))
    if alpha != int(alpha):
        raise InputError(
            f"model.path={adapter.name} has lora_alpha={alpha}; expected a whole number. {MERGE}"
        )
    brought: dict[str, Any] = {"r": rank, "lora_alpha": int(alpha)}
    if config.get("target_modules"):
        named = config["target_modules"]
        brought["target_modules"] = named if isinstance(named, str) else tuple(sorted(named))
    for name, value in brought.items():
        wanted = getattr(settings, name)
        wanted = wanted if isinstance(wanted, str | int) else tuple(sorted(wanted))
        if wanted not in (value, getattr(usual, name)):
            raise InputError(
                f"model.adapter.{name}={wanted}: the adapter {adapter.name} has {value}, and it is trained "
                f"further as it is. Leave it out; or {MERGE}"
            )
    if settings.serve == "adapter" and (named := [name for name in BY_MODULE if config.get(name)]):
        raise InputError(
            f"model.adapter.serve=adapter: vLLM serves no adapter with {' and '.join(named)}; expected "
            "model.adapter.serve=merged"
        )
    kind = "lora" if settings.kind == "none" else settings.kind
    return with_options(settings, {**brought, "kind": kind, "path": str(adapter.folder)})
