"""Configurations from another version of Whetstone, which lack options or have unknown ones.

config.yaml ─▶ completed ─▶ with newer options at their defaults ─▶ compared with the new settings
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from contracts.errors import InputError
from contracts.secrets.redaction import without_secrets
from contracts.settings import build
from learner.settings import ModelSettings
from rollout_workers.environments.base import EnvironmentSettings
from services.config.other_trainers import UNKNOWN
from services.config.settings import RunSettings
from services.models.chat_template import form_of
from services.models.files import read_model
from services.runs.claim import config_differences, flatten, plain

HINT = "{file} has options that this version of Whetstone does not know: use the version that wrote it."


def with_former_meaning(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with options whose absence once meant something else than today's default.

    Before environment.template existed, all prompts were plain.

    >>> with_former_meaning({"environment": {"name": "single_turn"}})
    {'environment': {'name': 'single_turn', 'template': 'plain'}}
    """
    environment = config.get("environment") or "single_turn"
    section = {"name": environment} if isinstance(environment, str) else environment
    return {**config, "environment": {**section, "template": section.get("template", "plain")}}


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration with its missing options at their defaults.

    Return a configuration that this version can't read unchanged.
    """
    whole = with_former_meaning(config)
    try:
        resolved: dict[str, Any] = without_secrets(plain(build(RunSettings, whole, where="").resolved()))
    except InputError:
        return dict(config)
    return resolved


def comparable(
    there: Mapping[str, Any],
    config: Mapping[str, Any],
    model: ModelSettings,
    environment: EnvironmentSettings,
) -> dict[str, Any]:
    """Return the configuration in a run's folder in the form that the new settings would write.

    Missing options are added. If `auto` now means the folder's template, the template becomes `auto`.

    Args:
        config: the new configuration, without secrets. It holds `model` and `environment`.
    """
    whole = completed(there) if config_differences(there, config) else dict(there)
    played = whole.get("environment")
    if not isinstance(played, Mapping) or environment.template != "auto":
        return whole
    has_template = form_of(model.chat, "auto", read_model(model).tokenizer_folder) is not None
    if played.get("template") == ("chat" if has_template else "plain"):
        whole["environment"] = {**played, "template": "auto"}
    return whole


@contextmanager
def naming_unknown_options(file: object, config: Mapping[str, Any]) -> Iterator[None]:
    """If an error names an option in `file`, add that another version wrote the file.

    Raises:
        InputError: the block raised an InputError.
    """
    try:
        yield
    except InputError as error:
        message, there = str(error), flatten(config)
        before = [line.partition(f": {UNKNOWN}")[0] for line in message.splitlines() if UNKNOWN in line]
        unknown = [words.rpartition(" ")[2] for words in before]  # a file's name may precede the key
        if any(key == option or key.startswith(f"{option}.") for option in unknown for key in there):
            raise InputError(f"{message}\n{HINT.format(file=file)}") from None
        raise
