"""Hook of MkDocs: make pages of all keys of a run and all options of components, from the settings classes.

A key's description is the comment beside its field, or above it; a section's is its class's docstring.
"""

import re
from html import escape

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from contracts.components import find
from services.commands.keys import REQUIRED, Key, key_of, keys_of, settings_in
from services.commands.listing import KINDS, TABLES, blocks
from services.config.settings import RunSettings

FOLDER = "reference"


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


def table(keys: list[Key]) -> str:
    rows = [
        f'<tr id="{escape(key.name)}"><td><code>{escape(key.name)}</code></td><td>{value(key.default)}</td>'
        f"<td>{escape(key.type)}</td><td>{prose(key.description)}</td></tr>"
        for key in keys
    ]
    header = "<tr><th>key</th><th>default</th><th>type</th><th>description</th></tr>"
    return "\n".join(['<div class="keys-scroll"><table class="keys">', header, *rows, "</table></div>"])


def value(default: str) -> str:
    return default if default == REQUIRED else f"<code>{escape(default)}</code>"


def paragraph(docstring: str | None) -> str:
    first = (docstring or "").strip().split("\n\n")[0]
    return f"<p>{prose(' '.join(first.split()))}</p>"


def prose(text: str) -> str:
    """Escape a text for HTML, and mark up its code.

    >>> prose("`a` is <b>")
    '<code>a</code> is &lt;b&gt;'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
