"""Configurations that another version of Whetstone wrote: they lack options, or have unknown ones.

config.yaml ─▶ completed ─▶ with options that came since, at their defaults ─▶ compared with what is asked
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
    """Return `config` with the options whose absence meant something else than today's default does.

    Before environment.template there were only plain prompts.

    >>> with_former_meaning({"environment": {"name": "single_turn"}})
    {'environment': {'name': 'single_turn', 'template': 'plain'}}
    """
    environment = config.get("environment") or "single_turn"
    section = {"name": environment} if isinstance(environment, str) else environment
    return {**config, "environment": {**section, "template": section.get("template", "plain")}}


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration with the options that it lacks, at their defaults.

    A configuration that this version can't read is returned as it is.
    """
    whole = with_former_meaning(config)
    try:
        found: dict[str, Any] = without_secrets(plain(build(RunSettings, whole, where="").resolved()))
    except InputError:
        return dict(config)
    return found


def comparable(
    there: Mapping[str, Any], asked: Mapping[str, Any], model: ModelSettings, environment: EnvironmentSettings
) -> dict[str, Any]:
    """Return the configuration in a run's folder as the run that is asked for would have written it.

    It is completed where it lacks options. A template that is named there, and that `auto` stands for with
    the model that is asked for, becomes `auto`.

    Args:
        asked: the whole configuration that is asked for, without secrets. It holds `model` and `environment`.
    """
    found = completed(there) if config_differences(there, asked) else dict(there)
    played = found.get("environment")
    if not isinstance(played, Mapping) or environment.template != "auto":
        return found
    has_template = form_of(model.chat, "auto", read_model(model).tokenizer_folder) is not None
    if played.get("template") == ("chat" if has_template else "plain"):
        found["environment"] = {**played, "template": "auto"}
    return found


@contextmanager
def naming_unknown_options(file: object, config: Mapping[str, Any]) -> Iterator[None]:
    """Add to an error about an option that is in the `file` that another version wrote it.

    Raises:
        InputError: the block raised one.
    """
    try:
        yield
    except InputError as error:
        message, there = str(error), flatten(config)
        before = [line.partition(f": {UNKNOWN}")[0] for line in message.splitlines() if UNKNOWN in line]
        unknown = [words.rpartition(" ")[2] for words in before]  # a file's name may stand before the key
        if any(key == each or key.startswith(f"{each}.") for each in unknown for key in there):
            raise InputError(f"{message}\n{HINT.format(file=file)}") from None
        raise
