"""Hook of MkDocs: make pages of all keys of a run and all options of components, from the settings classes.

A key's description is the comment beside its field, or above it; a section's is its class's docstring.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, get_args

from field_comments import comments
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from contracts.components import find
from contracts.settings import Settings
from services.commands.listing import KINDS, TABLES, blocks, options_of
from services.config.settings import RunSettings

FOLDER = "reference"
# Keys of a run that take a name with options, and the pages of these options.
CHOICES = {TABLES[kind][0]: kind for kind in KINDS}
# Defaults that depend on other keys, so that no class has them.
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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, f"{FOLDER}/configuration.md", content=run_page()))
    for kind in KINDS:
        files.append(File.generated(config, f"{FOLDER}/{kind}.md", content=kind_page(kind)))
    return files


def run_page() -> str:
    """Return the page of all keys of a run, a table for each section."""
    links = ", ".join(f"[{kind}]({kind}.md)" for kind in KINDS)
    keys = list(keys_of(RunSettings))
    parts = [
        "# Keys of a run",
        "This page is made from the settings classes. `KEY=VALUE` on the command line sets a key.",
        f"Parts that you choose by name have options of their own: {links}.",
    ]
    for section in dict.fromkeys(key.section for key in keys):
        kind = settings_in(RunSettings.model_fields[section]) if section else RunSettings
        parts += [f"## {section or 'The run'}", paragraph(kind.__doc__)]
        parts.append(table([key for key in keys if key.section == section]))
    return "\n\n".join(parts) + "\n"


def kind_page(kind: str) -> str:
    """Return the page of one kind of component, with a table for each built-in one."""
    choice, addresses = TABLES[kind]
    parts = [f"# Options of {kind}", f"`whetstone list {kind}` prints the same on the machine at hand."]
    for block in blocks(kind):
        keys = list(keys_of(find(choice, block["name"], addresses), f"{choice}."))
        known = {key.name for key in keys}
        keys += [
            key_of(f"{choice}.{name}", option, "")
            for name, option in block["options"].items()
            if f"{choice}.{name}" not in known  # such as every task's truncation_side
        ]
        parts += [f"## {block['name']}", paragraph(block["description"])]
        parts.append(table(keys) if keys else "No options.")
    return "\n\n".join(parts) + "\n"


def keys_of(kind: type, prefix: str = "", owner: Settings | None = None) -> Iterator[Key]:
    """Yield the keys of a class and of the settings within it.

    Args:
        owner: the object that holds the defaults; None: the class holds them.
    """
    if not issubclass(kind, Settings):
        return
    said, options = comments(kind), options_of(kind, owner)
    for name, field in kind.model_fields.items():
        default = getattr(owner, name, field.get_default(call_default_factory=True))
        inner = type(default) if isinstance(default, Settings) else settings_in(field)
        if name in options and not (inner and field.is_required()):
            yield key_of(prefix + name, options[name], said.get(name, ""))
        if inner:
            yield from keys_of(inner, f"{prefix}{name}.", default if isinstance(default, inner) else None)


def key_of(name: str, option: dict[str, Any], description: str) -> Key:
    default = json.dumps(option["default"], default=vars_of) if "default" in option else REQUIRED
    kind = "name, with options" if name in CHOICES else option["type"]
    return Key(name, FROM_OTHERS.get(name, default), kind, description)


def vars_of(value: Any) -> Any:
    """Return plain data for a default that JSON can't write."""
    return list(value.entries) if hasattr(value, "entries") else str(value)


def settings_in(field: FieldInfo) -> Any:
    """Return the settings class that a field takes, be it `Class`, `Class | None` or a tuple of them."""
    for each in (field.annotation, *get_args(field.annotation)):
        if isinstance(each, type) and issubclass(each, Settings):
            return each
    return None


def table(keys: list[Key]) -> str:
    rows = [
        f'<tr id="{escape(key.name)}"><td><code>{escape(key.name)}</code></td><td>{value(key.default)}</td>'
        f"<td>{escape(key.type)}</td><td>{prose(as_yaml(key.description))}</td></tr>"
        for key in keys
    ]
    header = "<tr><th>key</th><th>default</th><th>type</th><th>description</th></tr>"
    return "\n".join(['<div class="keys-scroll"><table class="keys">', header, *rows, "</table></div>"])


def value(default: str) -> str:
    return default if default == REQUIRED else f"<code>{escape(default)}</code>"


def as_yaml(comment: str) -> str:
    """Write Python's None, True and False as a configuration does.

    >>> as_yaml("None: all; False: none")
    'null: all; false: none'
    """
    return re.sub(r"\b(None|True|False)\b", lambda word: YAML_WORDS[word[0]], comment)


def paragraph(docstring: str | None) -> str:
    first = (docstring or "").strip().split("\n\n")[0]
    return f"<p>{prose(' '.join(first.split()))}</p>"


def prose(text: str) -> str:
    """Escape a text for HTML, and mark up its code.

    >>> prose("`a` is <b>")
    '<code>a</code> is &lt;b&gt;'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
