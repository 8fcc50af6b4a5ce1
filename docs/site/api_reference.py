"""Hook of MkDocs: make a page of docstrings for each package."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

INDEX = "reference/api/index.md"
NO_CODE = {"conf"}  # YAML alone


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    pages = {name: list(packages(root, name)) for name in top_packages(root)}
    for package in (each for found in pages.values() for each in found):
        files.append(File.generated(config, uri(package), content=page(root, package)))
    files.append(File.generated(config, INDEX, content=index(pages)))
    listed = [{name: [{each: uri(each)} for each in found]} for name, found in pages.items()]
    put_below_index(config.nav or [], listed)
    return files


def top_packages(root: Path) -> list[str]:
    """Return the packages that pyproject.toml ships and that exist."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    shipped = [name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    return [name for name in shipped if name not in NO_CODE and (root / name / "__init__.py").exists()]


def packages(root: Path, top: str) -> Iterator[str]:
    """Yield the dotted names of a package and of all packages within it."""
    for init in sorted((root / top).rglob("__init__.py"), key=lambda path: path.parent.parts):
        yield ".".join(init.parent.relative_to(root).parts)


def modules(root: Path, package: str) -> list[str]:
    """Return the dotted names of a package's own modules, without `__init__` and `__main__`."""
    folder = root.joinpath(*package.split("."))
    return [f"{package}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem[:2] != "__"]


def uri(package: str) -> str:
    return f"reference/api/{package}.md"


def page(root: Path, package: str) -> str:
    intro = f"::: {package}\n    options:\n      members: false\n      show_root_heading: false"
    parts = [f"# {package}", intro, *(f"::: {module}" for module in modules(root, package))]
    return "\n\n".join(parts) + "\n"


def index(pages: dict[str, list[str]]) -> str:
    lines = ["# Python API", "", "These pages are made from the docstrings of the code.", ""]
    for name, found in pages.items():
        lines += [f"## {name}", "", *(f"- [{each}]({each}.md)" for each in found), ""]
    return "\n".join(lines)


def put_below_index(nav: list, pages: list[dict[str, list[dict[str, str]]]]) -> None:
    """Replace the API's index in the navigation by a section that begins with it."""
    for entry in nav:
        for title, inner in entry.items() if isinstance(entry, dict) else ():
            if inner == INDEX:
                entry[title] = [INDEX, *pages]
            elif isinstance(inner, list):
                put_below_index(inner, pages)
