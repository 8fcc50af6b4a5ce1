"""Keys of a run and options of components, described by the comments beside their fields."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from contracts.errors import InputError, did_you_mean
from contracts.settings import Settings
from services.commands.field_comments import comments
from services.commands.listing import KINDS, TABLES, options_of
from services.config.settings import RunSettings

# A run's keys for components, with the component's kind.
CHOICES = {TABLES[kind][0]: kind for kind in KINDS}
# Defaults that depend on other keys, so no class holds them.
FROM_OTHERS = {
    "run_name": "<task>-<algorithm>-seed<seed>",
    "reward": "the task's own",
    "metrics": "the task's own",
}
REQUIRED = "required"
YAML_WORDS = {"None": "null", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Key:
    """A row of a table of keys.

    Example: `Key("rollout.top_k", "0", "int, >= 0", "0: no limit")`
    """

    name: str
    default: str
    type: str
    description: str

    @property
    def section(self) -> str:
        """The part before the first dot; "" for a key of the run itself."""
        return self.name.partition(".")[0] if "." in self.name else ""


def keys_of_a_run(section: str | None = None) -> list[Key]:
    """Return all keys, or the keys of a section such as `rollout`.

    Raises:
        InputError: no key begins with the section's name.
    """
    keys = list(keys_of(RunSettings))
    if section is None:
        return keys
    if chosen := [key for key in keys if key.name == section or key.name.startswith(f"{section}.")]:
        return chosen
    known = [key.section or key.name for key in keys]
    raise InputError(f"whetstone list keys {section}: no key begins so{did_you_mean(section, set(known))}")


def print_keys(keys: Sequence[Key]) -> None:
    """Print a table of keys, with default, type and description."""
    from rich.table import Table
    from rich.text import Text

    from services.terminal.screens import Screen

    table = Table("key", "default", "type", "description", box=None, padding=(0, 2, 0, 0))
    for key in keys:
        table.add_row(Text(key.name, "cyan"), Text(key.default), Text(key.type), Text(key.description))
    Screen(highlight=False).print(table)


def keys_of(kind: type, prefix: str = "", owner: Settings | None = None) -> Iterator[Key]:
    """Yield the keys of a class and its nested settings.

    Args:
        owner: the object that holds the defaults; None: the class holds them.
    """
    if not issubclass(kind, Settings):
        return
    described, options = comments(kind), options_of(kind, owner)
    for name, field in kind.model_fields.items():
        default = getattr(owner, name, field.get_default(call_default_factory=True))
        inner = type(default) if isinstance(default, Settings) else settings_in(field)
        if name in options and not (inner and field.is_required()):
            yield key_of(prefix + name, options[name], described.get(name, ""))
        if inner:
            yield from keys_of(inner, f"{prefix}{name}.", default if isinstance(default, inner) else None)


def key_of(name: str, option: dict[str, Any], description: str) -> Key:
    default = json.dumps(option["default"], default=vars_of) if "default" in option else REQUIRED
    kind = "name, with options" if name in CHOICES else option["type"]
    return Key(name, FROM_OTHERS.get(name, default), kind, as_yaml(description))


def vars_of(value: Any) -> Any:
    """Convert a default to JSON data."""
    return list(value.entries) if hasattr(value, "entries") else str(value)


def settings_in(field: FieldInfo) -> Any:
    """Return the settings class of a field of type `Class`, `Class | None` or a tuple of classes."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind
    return None


def as_yaml(comment: str) -> str:
    """Write Python's None, True and False as a configuration does.

    >>> as_yaml("None: all; False: none")
    'null: all; false: none'
    """
    return re.sub(r"\b(None|True|False)\b", lambda word: YAML_WORDS[word[0]], comment)
