"""Jinja templates of pages: a missing value is an error, and texts can't become markup."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def templates_in(
    *folders: Path, is_html: bool = True, filters: dict[str, Callable[..., Any]] | None = None
) -> "Environment":
    """Return the templates of these folders; earlier folders win.

    Args:
        is_html: escape all values; False: the template writes Markdown.
        filters: functions that templates call by name, beside Jinja's own.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=is_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters or {}
    return environment
