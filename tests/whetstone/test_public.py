"""`import whetstone` has all that a user's own classes need; papers for users import from nowhere else."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import whetstone
from contracts import errors
from whetstone.public import PLACES

ROOT = Path(__file__).parents[2]
INSIDE = r"(?:contracts|learner|reward_servers|rollout_workers|services)"
# An import, or a name in a module: `contracts.scores.Sample`, `contracts.scores`. Keys of a run look alike
# (`learner.token_budget`), so a name without a class must be that of a module.
IMPORTS = re.compile(rf"^\s*(?:from|import) {INSIDE}\b.*", re.MULTILINE)
NAMES = re.compile(rf"\b{INSIDE}(?:\.\w+)+")


def papers() -> Iterator[tuple[Path, str]]:
    """Yield pages for users; the architecture's page and that for contributors speak of the inside."""
    for path in sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")]):
        if path.name != "architecture.md":
            yield path, path.read_text(encoding="utf-8")
    for path in sorted(ROOT.glob("docs/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield path, "\n".join("".join(cell["source"]) for cell in cells)


def of_the_inside(text: str) -> list[str]:
    """Return the imports from the inside in a text, and names of its modules and of what they hold.

    >>> of_the_inside("import services.cli\\n`learner.token_budget=1`, `contracts.errors.InputError`")
    ['import services.cli', 'contracts.errors.InputError']
    """
    imports = [line.strip() for line in IMPORTS.findall(text)]
    return imports + [name for name in NAMES.findall(IMPORTS.sub("", text)) if is_of_a_module(name)]


def is_of_a_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return any(folder.with_suffix(".py").is_file() for folder in (path, path.parent))


def test_papers_for_users_import_from_whetstone_alone() -> None:
    inside = {str(path.relative_to(ROOT)): names for path, text in papers() if (names := of_the_inside(text))}
    assert inside == {}


def test_every_name_that_a_paper_imports_is_there() -> None:
    imported = {
        name.strip()
        for _, text in papers()
        for names in re.findall(r"^\s*from whetstone import (.+)$", text, re.MULTILINE)
        for name in names.split(",")
    }
    assert len(imported) > 20
    assert sorted(imported - set(whetstone.__all__)) == []


@pytest.mark.parametrize("name", sorted(whetstone.__all__))
def test_each_name_has_a_docstring(name: str) -> None:
    value = getattr(whetstone, name)
    assert value == Literal["train", "validation", "test"] if name == "Split" else value.__doc__


def test_the_table_agrees_with_what_type_checkers_read() -> None:
    """The import statements in `whetstone/__init__.py` never run, so a wrong one would not be noticed."""
    block = (ROOT / "whetstone/__init__.py").read_text().split("if TYPE_CHECKING:")[1].split("__all__")[0]
    pairs = re.findall(r"from ([\w.]+) import (.+)", block)
    assert {name: module for module, names in pairs for name in names.split(", ")} == PLACES
    for name, module in PLACES.items():
        assert getattr(importlib.import_module(module), name) is getattr(whetstone, name)


def test_an_import_costs_no_torch_and_no_ray() -> None:
    code = (
        "import sys, whetstone; whetstone.Prompt, whetstone.Environment; "
        "print('torch' in sys.modules, 'ray' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]


def test_a_users_class_and_a_call_raise_one_error() -> None:
    assert whetstone.InputError is errors.InputError and whetstone.RunError is errors.RunError


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'whetstone' has no attribute 'Promt'"):
        whetstone.Promt  # noqa: B018
