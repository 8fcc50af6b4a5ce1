"""Compose the settings of an evaluation: a run's configuration or conf/, with overrides."""

from collections.abc import Mapping
from typing import Any

from contracts.conversations.chat_settings import AUTO, NONE, TOKENIZER
from contracts.errors import InputError
from contracts.settings import build
from services.config.other_versions import naming_unknown_options, with_former_meaning
from services.config.settings import RunSettings
from services.inference.generation.run_model import model_of
from services.runs.folder import RunFolder


def settings_for(folder: RunFolder | None, overrides: list[str]) -> RunSettings:
    """Build settings from `overrides` over a run's configuration with its model, or over conf/.

    Raises:
        InputError: an override is unknown or of the wrong type or range; or the run has no model yet.
    """
    from services.config.compose import run_settings

    if folder is None:
        return run_settings(overrides)
    config = with_former_meaning(folder.config())
    with naming_unknown_options(folder.config_file, config):
        return build(RunSettings, _laid_over(config, folder, overrides), where="")


def _chat(config: Mapping[str, Any], *, is_another: bool) -> dict[str, Any]:
    """Return the run's chat settings; the run model's tokenizer has a template that was a file."""
    model = config.get("model")
    chat = model.get("chat") if isinstance(model, Mapping) else None
    if not chat:
        return {}
    is_own_file = chat.get("template") not in (AUTO, NONE, None) and not is_another
    return {"chat": {**chat, "template": TOKENIZER} if is_own_file else dict(chat)}


def _laid_over(config: dict[str, Any], folder: RunFolder, overrides: list[str]) -> dict[str, Any]:
    """Return a run's configuration with its trained model and the overrides, as plain data."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from services.config.compose import COMPONENTS, REPLACED, set_in_list
    from services.config.override_words import parse

    for key in REPLACED:  # a single component takes options: reward.weight=2
        if isinstance(listed := config.get(key), list) and len(listed) == 1:
            config[key] = listed[0]
    parsed = [parse(text) for text in overrides]
    # Another model has its own tokenizer; the run's belongs to the run's model.
    is_another = any(override.key_or_group == "model.path" for override in parsed)
    of_run = {} if is_another else {"path": str(model_of(folder))}
    config["model"] = of_run | _chat(config, is_another=is_another)
    place = folder.path.absolute()  # which may have been moved
    config |= {"output_dir": str(place.parent), "run_name": place.name}
    tree = OmegaConf.create(config)
    for override in parsed:
        if override.is_sweep_override():
            raise InputError(f"{override.input_line}: expected one value; only whetstone train sweeps")
        if set_in_list(tree, override):
            continue
        key, value = override.key_or_group, override.value()
        if key in (*COMPONENTS, *REPLACED) and isinstance(value, str):
            value = {"name": value}  # so that its options can follow
        try:
            OmegaConf.update(tree, key, value, merge=key not in (*COMPONENTS, *REPLACED))
        except OmegaConfBaseException as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"{override.input_line}: {reason}") from None
    plain: dict[str, Any] = OmegaConf.to_container(tree)  # type: ignore[assignment]
    return plain
