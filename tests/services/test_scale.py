"""`whetstone scale` where there is nothing to scale; `tests/reward_servers/test_scaling.py` has the rest."""

import pytest

from contracts.errors import InputError
from services.scale import run


def test_nothing_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"nor `serve` runs at RAY_ADDRESS=127\.0\.0\.1:1: nothing to scale"):
        run(["rouge", "2"])


@pytest.mark.parametrize("argv", [[], ["rouge"], ["rouge", "0"], ["rouge", "many"]])
def test_a_label_and_a_number_are_needed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(argv)
    assert "usage: whetstone scale" in capsys.readouterr().err
