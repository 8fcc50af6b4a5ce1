"""The plan names bfloat16 where a run's CPU multiplies it, and nowhere else."""

from pathlib import Path

import pytest

from benchmarks.gpu_plans import MACHINES, run_of
from benchmarks.qwen_shapes import files_of
from services.models.files import read_model
from services.training.plan import plan
from services.training.preflight.deployment import Machine, deployment_of
from services.training.preflight.machine import multiplies_bfloat16
from tests.models import make_tiny_model

CPU = Machine(num_cores=2.0, num_gpus=0)


@pytest.mark.parametrize(("flags", "expected"), [("fpu amx_bf16 amx_tile", True), ("fpu avx512_bf16", False)])
def test_a_processor_with_units_for_bfloat16_is_known_by_its_flags(
    tmp_path: Path, flags: str, expected: bool
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert multiplies_bfloat16(file) is expected


def test_where_the_system_tells_no_flags_none_is_assumed(tmp_path: Path) -> None:
    assert not multiplies_bfloat16(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "machine", "has_units", "expected"),
    [
        ({}, CPU, True, ["faster"]),
        ({}, CPU, False, []),
        ({}, MACHINES["1×80 GB"], True, []),
        ({"learner": {"autocast": "none"}}, CPU, True, []),  # decided
        ({"learner": {"autocast": "bfloat16"}}, CPU, True, []),
    ],
)
def test_the_plan_names_what_would_be_faster(
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    machine: Machine,
    has_units: bool,
    expected: list[str],
) -> None:
    monkeypatch.setattr(plan, "multiplies_bfloat16", lambda: has_units)
    run, files = run_of(**changes), files_of("0.5B")
    assert list(plan.faster(run.learner.autocast, files, deployment_of(run, files, machine))) == expected


def test_small_models_gain_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plan, "multiplies_bfloat16", lambda: True)
    run = run_of(model={"path": str(make_tiny_model(tmp_path))})
    files = read_model(run.model)
    assert plan.faster(run.learner.autocast, files, deployment_of(run, files, CPU)) == {}
