"""`whetstone train --help`: one screen, whatever is added to the tables."""

import pytest

from services.config.compose import print_help


def test_the_help_fits_on_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert print_help([]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("  algorithm=   a2c, ") for line in lines)
    assert any("demo" in line for line in lines)


def test_the_choices_fit_a_narrow_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    print_help([])
    _, choices = capsys.readouterr().out.split("Choices:\n")
    lists = [line for line in choices.splitlines() if line.startswith((" " * 15, "  algorithm= "))]
    assert len(lists) > 10 and max(map(len, lists)) <= 72
