"""Settings of the rows that also shape the data they learn from: those that `whetstone annotate` takes."""

from collections.abc import Sequence

from contracts.errors import InputError
from services.config.override_words import parse

SHARED = ("reward", "task", "reward_servers", "rollout", "learner")  # groups that both commands have
RENAMED = {"model.chat": "chat", "data.value": "value"}
REFUSED = ("experiment", "data.folder", "model.revision", "model.tokenizer")


def for_annotation(overrides: Sequence[str], *, values: bool) -> list[str]:
    """Return the overrides of an annotation that follow from those of the rows.

    Args:
        values: the annotation learns values; else it takes no options of them.

    Raises:
        InputError: the rows would learn from data that were annotated without that setting.

    >>> for_annotation(["reward.model=judge", "algorithm.beta=0.1", "model.chat.system=Hello"], values=False)
    ['reward.model=judge', 'chat.system=Hello']
    """
    found = []
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        if _is_in(key, REFUSED):
            raise InputError(
                f"{text}: these rows learn from data that are annotated first, and the annotation can't take "
                f"{key}; expected no such setting"
            )
        if _is_in(key, SHARED):
            found.append(text)
        for ours, theirs in RENAMED.items():
            if _is_in(key, (ours,)) and (values or theirs != "value"):
                found.append(f"{theirs}{key.removeprefix(ours)}={value}")
    return found


def model_of(overrides: Sequence[str], otherwise: str) -> str:
    """Return the model that the rows begin with: the last `model.path` that was asked for."""
    asked = [str(each.value()) for each in map(parse, overrides) if each.key_or_group == "model.path"]
    return asked[-1] if asked else otherwise


def _is_in(key: str, groups: Sequence[str]) -> bool:
    return any(key == group or key.startswith(f"{group}.") for group in groups)
