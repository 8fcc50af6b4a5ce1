"""Components get their own settings: few signatures take the settings of the whole run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("contracts", "rollout_workers", "reward_servers", "learner", "services", "whetstone")
WHOLE = {"RunSettings", "RunParts"}  # the run's settings, and the base class with the same fields
MOST = 34  # 25 before data were annotated inside of a run, 33 before adapters; to come down again


def names_in(annotation: ast.expr | None) -> set[str]:
    """Return every name in an annotation, also in a quoted one, and the last part of a dotted one."""
    if annotation is None:
        return set()
    names = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= names_in(ast.parse(node.value, mode="eval").body)
    return names


def takers(source: str) -> Iterator[str]:
    """Yield the functions with a parameter, and the classes with a field, of the whole run's settings.

    A field counts, for a dataclass takes it when it is made. What a function returns does not count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments += [argument for argument in (node.args.vararg, node.args.kwarg) if argument]
            annotations = [argument.annotation for argument in arguments]
        elif isinstance(node, ast.ClassDef):
            annotations = [
                node_field.annotation for node_field in node.body if isinstance(node_field, ast.AnnAssign)
            ]
        else:
            continue
        if any(names_in(annotation) & WHOLE for annotation in annotations):
            yield node.name


@pytest.mark.parametrize(
    "source",
    [
        "def f(settings: RunSettings): ...",
        "async def f(a: int, *, settings: 'RunSettings | None' = None): ...",
        "def f(*runs: settings.RunSettings): ...",
        "def f(act: Callable[[RunParts], None]): ...",
        "class f:\n    runs: dict[str, RunSettings]",
    ],
)
def test_a_signature_with_the_whole_run_is_found(source: str) -> None:
    assert list(takers(source)) == ["f"]


@pytest.mark.parametrize("source", ["def f(a: RolloutSettings) -> RunSettings: ...", "runs: RunSettings"])
def test_a_part_a_result_and_a_variable_are_not_found(source: str) -> None:
    assert list(takers(source)) == []


def test_few_signatures_take_the_whole_runs_settings() -> None:
    takers_named = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in takers(path.read_text())
    ]
    assert 0 < len(takers_named) <= MOST, "\n".join(takers_named)


def test_the_settings_have_no_other_name() -> None:
    """An alias would hide a signature from the count."""
    hidden = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.alias) and node.name in WHOLE and node.asname)
        or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in WHOLE)
    ]
    assert hidden == []
