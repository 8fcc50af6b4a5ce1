"""Hook of MkDocs: make the page of everything that users import from `whetstone`, from the docstrings."""

from collections.abc import Iterable

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from whetstone.public import BY_TITLE

URI = "reference/python.md"
CALLS = ("train", "evaluate", "score", "load_run", "Run", "Graded", "demo_model", "InputError", "RunError")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, URI, content=page()))
    return files


def page() -> str:
    """Return the page: a section for each title, with an entry for each name."""
    parts = [
        "# Python reference",
        "Everything here comes from `whetstone`: `from whetstone import Prompt, Settings`. "
        "[From Python](../python.md) and [Bring your own](../extending.md) show how to use it.",
        *section("Calls and results", CALLS),
    ]
    for title, modules in BY_TITLE.items():
        parts += section(title, [name for names in modules.values() for name in names])
    return "\n\n".join(parts) + "\n"


def section(title: str, names: Iterable[str]) -> list[str]:
    return [f"## {title}", *(f"::: whetstone.{name}\n    options:\n      heading_level: 3" for name in names)]
