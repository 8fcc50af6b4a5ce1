"""Hook of MkDocs: make a page below project/ for each file outside of docs/ that a page links to."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"\]\((?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")
PICTURES = {".png", ".svg", ".jpg", ".gif", ".webp"}
BELOW = "project/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    docs = Path(config.docs_dir)
    to_read = [docs / file.src_uri for file in files.documentation_pages() if not file.generated_by]
    added: set[Path] = set()
    while to_read:
        paper = to_read.pop()
        new = {target for target in targets(paper) if not target.is_relative_to(docs)} - added
        for target in new:
            files.append(as_file(target, config))
        added |= new
        to_read += [target for target in new if target.suffix == ".md"]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    docs, here = Path(config.docs_dir), page.file.src_uri
    outside = here.startswith(BELOW)
    paper = docs.parent / here.removeprefix(BELOW) if outside else docs / here

    def rewritten(link: re.Match[str]) -> str:
        target = (paper.parent / link[1]).resolve()
        if not target.exists() or not (outside or not target.is_relative_to(docs)):
            return link[0]  # MkDocs follows it, or reports a dead link
        return f"]({posixpath.relpath(uri(target, docs), posixpath.dirname(here))}{link[2] or ''})"

    return LINK.sub(rewritten, markdown)


def targets(paper: Path) -> Iterator[Path]:
    """Yield the files and folders that a paper links to."""
    for link in LINK.finditer(paper.read_text()):
        if (target := (paper.parent / link[1]).resolve()).exists():
            yield target


def uri(target: Path, docs: Path) -> str:
    """Return the site's address of a file of the repository."""
    if target.is_relative_to(docs):
        return target.relative_to(docs).as_posix()
    path = f"{BELOW}{target.relative_to(docs.parent).as_posix()}"
    return path if target.suffix in {".md", *PICTURES} else f"{path}.md"


def as_file(target: Path, config: MkDocsConfig) -> File:
    place = uri(target, Path(config.docs_dir))
    if target.suffix in {".md", *PICTURES}:
        return File.generated(config, place, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV)
    return File.generated(config, place, content=shown(target), inclusion=InclusionLevel.NOT_IN_NAV)


def shown(target: Path) -> str:
    """Return a page with a file's text, or the names in a folder."""
    if target.is_dir():
        names = sorted(
            path.name + "/" * path.is_dir() for path in target.iterdir() if path.name[0] not in "._"
        )
        return f"# {target.name}\n\n" + "".join(f"- `{name}`\n" for name in names)
    return f"# {target.name}\n\n~~~~{target.suffix[1:]}\n{target.read_text()}\n~~~~\n"
