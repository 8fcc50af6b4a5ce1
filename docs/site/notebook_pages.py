"""Hook of MkDocs: turn a notebook into a page, with its stored outputs; no cell is run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\((?!\w+:)[^)\s]+)\.ipynb(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in [listed for listed in files if listed.src_uri.endswith(".ipynb")]:
        notebook = json.loads(Path(config.docs_dir, file.src_uri).read_text())
        place = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, place, content=page(notebook, file.name)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Point links to a notebook to its page."""
    return LINK.sub(r"\1.md", markdown)


def page(notebook: dict[str, Any], name: str) -> str:
    parts = [part for cell in notebook["cells"] for part in cell_parts(cell)]
    download = f'<p><a href="{name}.ipynb" download>Download this notebook</a></p>'
    return "\n\n".join([*parts[:1], download, *parts[1:]]) + "\n"


def cell_parts(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the parts that a cell shows: its text, or its code and output.

    >>> list(cell_parts({"cell_type": "code", "source": ["1 + 1"], "outputs": []}))
    ['~~~~python\\n1 + 1\\n~~~~']
    """
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
    elif source:
        yield f"~~~~python\n{source}\n~~~~"
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if picture := data.get("image/png"):
            yield f'<p><img alt="" src="data:image/png;base64,{"".join(picture).replace(chr(10), "")}"></p>'
        elif text := output.get("text") or data.get("text/plain"):
            yield f"~~~~text\n{''.join(text).rstrip()}\n~~~~"
