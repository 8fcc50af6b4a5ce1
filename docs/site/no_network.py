"""Hook of MkDocs: fail where a built page would load something from the network."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

# Addresses that a browser fetches by itself, without the links that a reader may click.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^\s"'>]+"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^\s"'>]+"""
    r"""|url\(\s*["']?(?:https?:)?//[^)]+|@import\s+["'](?:https?:)?//[^"']+"""
)


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    pages = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css")]
    loads = [f"{page.relative_to(site)}: {address}" for page in pages for address in loaded(page.read_text())]
    if loads:
        raise PluginError(
            "the site loads from the network; expected its own files alone:\n" + "\n".join(loads)
        )


def loaded(text: str) -> list[str]:
    """Return the parts of a page or a style sheet that load from the network.

    >>> loaded('<script src="https://a.b/c.js"></script> <a href="https://a.b">a</a> <img src="d.png">')
    ['<script src="https://a.b/c.js']
    """
    return LOADED.findall(text)
