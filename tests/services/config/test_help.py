"""`whetstone train --help`: one screen, whatever is added to the tables."""

import pytest

from services.config.compose import print_help


def test_the_help_fits_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_help([]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("  algorithm=   a2c, ") for line in lines)
    assert any("demo" in line for line in lines)
