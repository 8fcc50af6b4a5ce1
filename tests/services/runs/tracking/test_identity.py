"""A run's own id in trackers: made once, kept by resumes and copies, new for a new run in the same place."""

import shutil
from pathlib import Path

import pytest

from services.runs.folder import RunFolder
from services.runs.tracking.identity import identity_of
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.sinks import open_sink


def begun(output_dir: Path) -> RunFolder:
    """A run's folder before its first result."""
    (output_dir / "numbers").mkdir(parents=True)
    return RunFolder(output_dir / "numbers")


def test_a_resume_and_a_copy_keep_the_id_and_a_new_run_gets_its_own(tmp_path: Path) -> None:
    folder = begun(tmp_path / "runs")
    first = identity_of(folder)
    folder.append_rollout_info(1, {"reward/mean": 0.5})
    assert first is not None and identity_of(folder) == first

    elsewhere = RunFolder(shutil.copytree(folder.path, tmp_path / "elsewhere"))
    assert identity_of(elsewhere) == first

    shutil.rmtree(folder.path)
    assert identity_of(begun(tmp_path / "runs")) not in (None, first)


def test_a_run_of_an_older_version_keeps_what_it_had(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.append_rollout_info(1, {"reward/mean": 0.5})
    assert identity_of(folder) is None
    assert not folder.trackers.exists()


@pytest.mark.parametrize("text", ['{"id": "7"}', "[]", '{"id": 1'])
def test_a_damaged_file_costs_a_warning_and_a_new_id(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = begun(tmp_path)
    folder.trackers.write_text(text)
    made = identity_of(folder)
    assert "trackers begin a new run" in caplog.text
    assert made is not None and identity_of(folder) == made


def test_two_runs_of_one_name_and_place_have_their_own_curves(tmp_path: Path) -> None:
    for run_id in ("0123456789abcdef", "fedcba9876543210", None):
        open_sink("tensorboard", TrackingSettings(), "numbers", tmp_path, run_id).close(True)
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert names == ["numbers", "numbers-01234567", "numbers-fedcba98"]
