"""Hook of MkDocs: leave missing pages out of the navigation."""

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    config.nav = there(config.nav, files)
    return files


def there(entry: Any, files: Files) -> Any:
    """Return a part of the navigation without missing pages; None where nothing is left.

    A misspelt page still fails the build, because the real page is then in no navigation.
    """
    if isinstance(entry, str):
        return entry if files.get_file_from_path(entry) else None
    if isinstance(entry, dict):
        return {title: kept for title, inner in entry.items() if (kept := there(inner, files))} or None
    return [kept for inner in entry or () if (kept := there(inner, files))] or None
