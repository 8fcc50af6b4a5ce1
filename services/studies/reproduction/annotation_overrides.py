"""Rows' settings that also apply to `whetstone annotate`."""

from collections.abc import Sequence

from contracts.errors import InputError
from services.config.override_words import parse

SHARED = ("reward", "task", "reward_servers", "rollout", "learner")  # groups that both commands have
RENAMED = {"model.chat": "chat", "data.value": "value"}
REFUSED = ("experiment", "data.folder", "model.revision", "model.tokenizer")


def for_annotation(overrides: Sequence[str], *, values: bool) -> list[str]:
    """Return an annotation's overrides for the rows' overrides.

    Args:
        values: the annotation learns values; otherwise it has no value options.

    Raises:
        InputError: the rows would learn from data annotated without a setting.

    >>> for_annotation(["reward.model=judge", "algorithm.beta=0.1", "model.chat.system=Hello"], values=False)
    ['reward.model=judge', 'chat.system=Hello']
    """
    translated = []
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        if _is_in(key, REFUSED):
            raise InputError(
                f"{text}: these rows learn from annotated data, and the annotation can't take {key}. "
                "Leave it out"
            )
        if _is_in(key, SHARED):
            translated.append(text)
        for ours, theirs in RENAMED.items():
            if _is_in(key, (ours,)) and (values or theirs != "value"):
                translated.append(f"{theirs}{key.removeprefix(ours)}={value}")
    return translated


def model_of(overrides: Sequence[str], otherwise: str) -> str:
    """Return the rows' start model, the last `model.path`."""
    paths = [
        str(override.value()) for override in map(parse, overrides) if override.key_or_group == "model.path"
    ]
    return paths[-1] if paths else otherwise


def _is_in(key: str, groups: Sequence[str]) -> bool:
    return any(key == group or key.startswith(f"{group}.") for group in groups)
