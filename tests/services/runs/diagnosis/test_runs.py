"""Real runs of a small model: a built-in fault is found, and a sound run has no finding."""

from pathlib import Path

import pytest

from benchmarks.studies import diagnose as bench
from benchmarks.studies.diagnose_runs import FAULTY, SOUND

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
SHORT = 25  # iterations
CASES = {case.name: case for case in (*SOUND, *FAULTY)}


@pytest.mark.parametrize("name", ["grpo", "responses cut", "learning rate 1", "constant reward"])
def test_a_run_is_told_its_fault_and_a_sound_one_none(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = tmp_path_factory.getbasetemp() / "diagnose"  # one start model for all
    monkeypatch.setattr(bench, "RUNS", folder)

    bench.make(CASES[name], 0, SHORT)
    (verdict,) = bench.judged([CASES[name]], [0])

    assert verdict.missed == ()
    assert verdict.case.expected or verdict.since == {}
