"""`whetstone list keys` shows each key of a run, with the comment beside its field."""

import json

import pytest

from contracts.errors import InputError
from services.commands import listing


@pytest.fixture
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert listing.run(["keys", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("wide_screen")
def test_a_section_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "rollout").splitlines()
    assert all(line.startswith(("key", "rollout.", " ")) for line in lines)
    (row,) = (line for line in lines if line.startswith("rollout.top_k"))
    assert row.split("  ", 1)[1].split() == ["0", "int,", ">=", "0", "0:", "no", "limit"]


def test_programs_read_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--json"))}
    assert rows["evaluate_every"]["default"] == "10"
    assert rows["model.critic"]["description"].startswith("linear, mlp, or")
    deeper = json.loads(printed(capsys, "learner.mismatch", "--json"))
    assert {row["name"] for row in deeper} == {name for name in rows if name.startswith("learner.mismatch.")}


def test_a_wrong_section_is_named() -> None:
    with pytest.raises(InputError, match="no key begins so; did you mean 'rollout'"):
        listing.run(["keys", "rolout"])
    with pytest.raises(InputError, match="rewards rollout: only keys have sections"):
        listing.run(["rewards", "rollout"])
