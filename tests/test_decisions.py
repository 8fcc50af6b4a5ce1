"""DECISIONS.md is short, and names only what exists."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "DECISIONS.md").read_text()
LONGEST = 300  # lines
MOST = 45  # decisions
SOURCES = (
    "contracts",
    "rollout_workers",
    "reward_servers",
    "learner",
    "services",
    "whetstone",
    "tests",
)
A_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.(?:py|md|toml|yaml)")
A_CLASS = re.compile(r"(?:[A-Z][a-z]+)+")
A_FUNCTION = re.compile(r"([a-z]\w*)\(.*\)")
A_TEST = re.compile(r"(\S+\.py)::(\w+)")
OF_A_RUN = {"config.yaml"}  # files that runs write


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


@cache
def defined() -> set[str]:
    """Names of our classes, functions and module constants."""
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("[!.]*.py")]
    pairs = re.findall(
        r"^ *(?:class|(?:async )?def) (\w+)|^([A-Z]\w+) = ", "\n".join(map(Path.read_text, paths)), re.M
    )
    return {name for pair in pairs for name in pair}


def unknown(name: str) -> bool:
    """Tell whether a quoted file, class, function or test is in no tree of ours.

    Examples: `learner/nowhere.py`, `NoSuchClass`, `no_such_function()`, `tests/test_house.py::test_nothing`.
    """
    if test := A_TEST.fullmatch(name):
        path = ROOT / test[1]
        return not path.exists() or f"def {test[2]}(" not in path.read_text()
    if A_PATH.fullmatch(name):
        return name not in OF_A_RUN and not (ROOT / name).exists()
    if A_CLASS.fullmatch(name):
        return name not in defined()
    if function := A_FUNCTION.fullmatch(name):
        return function[1] not in defined()
    return False


def decisions() -> list[str]:
    return TEXT.split("\n### ")[1:]


def test_decisions_are_few_and_short() -> None:
    assert 20 < len(decisions()) <= MOST
    assert len(TEXT.splitlines()) <= LONGEST


def test_each_decision_has_a_title_a_status_with_a_day_and_a_reason() -> None:
    for decision in decisions():
        title, _, body = decision.partition("\n")
        assert re.match(r"\*\*Status:\*\* in force since \d{4}-\d\d-\d\d\b", body), title
        assert re.findall(r"^\*\*(Why|Rejected):\*\* \S", body, re.MULTILINE) in (
            ["Why"],
            ["Why", "Rejected"],
        ), title


def test_titles_differ() -> None:
    titles = [decision.partition("\n")[0] for decision in decisions()]
    assert len(set(titles)) == len(titles)


def test_what_decisions_name_exists() -> None:
    names = quoted(TEXT)
    assert len([name for name in names if A_PATH.fullmatch(name) or A_CLASS.fullmatch(name)]) > 20
    assert [name for name in names if unknown(name)] == []


@pytest.mark.parametrize(
    "name", ["learner/nowhere.py", "NoSuchClass", "no_such_function()", "tests/test_house.py::test_nothing"]
)
def test_a_name_that_is_gone_is_noticed(name: str) -> None:
    assert unknown(name)
