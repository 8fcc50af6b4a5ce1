"""The run's folder: who may start in it, and that what is written reads back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import DiskFull, InputError
from services.runs.claim import is_held
from services.runs.folder import RunFolder, is_run
from services.runs.json_lines import read_rows, to_line

CONFIG = {
    "iterations": 4,
    "seed": 1,
    "model": {"path": "tiny", "dtype": None},
    "rollout": {"num_workers": 1, "max_tokens": 20},
    "reward": ({"name": "length", "weight": 0.5},),
}


def opened(tmp_path: Path, resume: str = "auto", **changed: object) -> RunFolder:
    return RunFolder.open(tmp_path, "numbers", CONFIG | changed, resume=resume)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in files}


def test_a_new_folder_holds_the_configuration(tmp_path: Path) -> None:
    folder = opened(tmp_path / "deep" / "runs")

    assert folder.path == tmp_path / "deep" / "runs" / "numbers"
    assert is_run(folder.path)
    assert folder.config()["reward"] == [{"name": "length", "weight": 0.5}]


def test_the_same_run_goes_on_longer_and_elsewhere(tmp_path: Path) -> None:
    opened(tmp_path).append_rollout_info(1, {"reward/mean": 0.5})

    again = opened(
        tmp_path, iterations=9, rollout={"num_workers": 3, "max_tokens": 20}, tracking={"uri": "x"}
    )

    assert again.rollout_info() == [{"iteration": 1, "reward/mean": 0.5}]
    assert again.config()["iterations"] == 9


def test_another_configuration_is_refused_with_both_values_and_harms_nothing(tmp_path: Path) -> None:
    opened(tmp_path).append_rollout_info(1, {"reward/mean": 0.5})
    before = contents(tmp_path)

    with pytest.raises(InputError) as refusal:
        opened(tmp_path, seed=2, model={"path": "large", "dtype": None}, surplus=True)

    message = str(refusal.value)
    assert "seed: there 1, asked for 2" in message
    assert "model.path: there 'tiny', asked for 'large'" in message
    assert "surplus: there nothing, asked for True" in message
    assert "run_name=" in message
    assert contents(tmp_path) == before


def test_a_whole_number_and_the_same_float_are_no_difference(tmp_path: Path) -> None:
    opened(tmp_path, seed=1)
    opened(tmp_path, seed=1.0)


def test_resume_never_refuses_results_but_takes_an_empty_start(tmp_path: Path) -> None:
    folder = opened(tmp_path, resume="never")
    opened(tmp_path, resume="never")
    folder.append_evaluation(0, "validation", {"reward/mean": 0.2})

    with pytest.raises(InputError, match="resume=auto"):
        opened(tmp_path, resume="never")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    thesis = tmp_path / "numbers" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")

    with pytest.raises(InputError, match=r"'thesis\.txt' but no config\.yaml"):
        opened(tmp_path)
    assert contents(tmp_path) == {str(thesis): b"years of work"}


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "/tmp"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="run_name"):
        RunFolder.open(tmp_path, name, CONFIG, resume="auto")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc")):
        with pytest.raises(InputError, match="output_dir="):
            opened(place)


def test_a_broken_configuration_is_refused_by_name(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.config_file.write_text("a: [1, 2")
    with pytest.raises(InputError, match=r"config\.yaml can't be read"):
        opened(tmp_path)
    folder.config_file.write_text("just text")
    with pytest.raises(InputError, match="expected keys and values, got str"):
        opened(tmp_path)


def test_a_second_process_is_refused_while_the_first_runs_and_not_after(tmp_path: Path) -> None:
    opening = (
        "import sys; from services.runs.folder import RunFolder; "
        f"RunFolder.open({str(tmp_path)!r}, 'numbers', {{'seed': 1}}, 'auto'); print('open', flush=True); "
        "sys.stdin.read()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", opening], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    with pytest.raises(InputError, match="this run is running in"):
        RunFolder.open(tmp_path, "numbers", {"seed": 1}, "auto")
    assert is_held(tmp_path / "numbers")

    first.kill()
    first.communicate()
    assert not is_held(tmp_path / "numbers")
    RunFolder.open(tmp_path, "numbers", {"seed": 1}, "auto")


def test_not_a_number_is_written_as_null(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.append_training_info(
        1, {"loss/value": float("nan"), "kl/mean": np.float32("inf"), "entropy": np.float64(2)}
    )
    folder.write_predictions(0, "val", [{"prompt_text": "a", "score": float("nan")}])

    assert folder.training_info() == [{"iteration": 1, "loss/value": None, "kl/mean": None, "entropy": 2.0}]
    assert "NaN" not in (folder.path / "training_info.jsonl").read_text()
    assert folder.predictions(0, "validation") == [{"prompt_text": "a", "score": None}]


def test_file_names_and_lines_are_those_that_scripts_know(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.append_evaluation(3, "validation", {"reward/mean": 0.2})
    folder.append_evaluation(3, "test", {"reward/mean": 0.3})
    folder.write_predictions(3, "validation", [])

    lines = (folder.path / "val_split_metrics.jsonl").read_text()
    assert json.loads(lines) == {"epoch": 3, "metrics": {"reward/mean": 0.2}}
    assert (folder.path / "test_split_metrics.jsonl").exists()
    assert (folder.path / "epoch_3_val_split_predictions.json").exists()
    assert folder.prediction_epochs("val") == folder.prediction_epochs("validation") == [3]


def test_truncating_leaves_each_iteration_once_after_a_resume(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for iteration in range(1, 6):
        folder.append_rollout_info(iteration, {"reward/mean": iteration / 10})
        folder.append_training_info(iteration, {"entropy": 1.0})
        folder.append_evaluation(iteration, "val", {"reward/mean": 0.5})
        folder.write_predictions(iteration, "val", [])
    with (folder.path / "training_info.jsonl").open("a") as file:
        file.write('{"iteration": 6, "entr')  # the crash

    folder.truncate_after(3)
    folder.append_rollout_info(4, {"reward/mean": 0.9})
    folder.append_training_info(4, {"entropy": 0.9})

    assert [row["iteration"] for row in folder.rollout_info()] == [1, 2, 3, 4]
    assert [row["iteration"] for row in folder.training_info()] == [1, 2, 3, 4]
    assert [row["epoch"] for row in folder.evaluations("val")] == [1, 2, 3]
    assert folder.prediction_epochs("val") == [1, 2, 3]

    folder.truncate_after(-1)
    assert not folder.has_results()


def test_only_complete_checkpoints_are_listed_oldest_first(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for name in ("10", "9", ".11.partial", "12.tmp"):
        (folder.path / "checkpoints" / name).mkdir(parents=True)

    assert list(folder.checkpoints()) == [9, 10]
    assert folder.checkpoints()[10] == folder.checkpoint(10)
    assert folder.has_results()


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(tmp_path)
    before = contents(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DiskFull, match="could not be written: no space left on device"):
        folder.write_predictions(0, "val", [{"prompt_text": "a"}])
    assert contents(tmp_path) == before


@given(
    st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
)
def test_any_line_reads_back_alone(tmp_path_factory: pytest.TempPathFactory, row: dict[str, object]) -> None:
    file = tmp_path_factory.mktemp("lines") / "x.jsonl"
    file.write_text(to_line(row) * 2, encoding="utf-8", errors="backslashreplace")
    assert read_rows(file) == [row, row]


def test_text_no_encoding_has_is_written_and_read(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.write_predictions(0, "val", [{"generated_text": "half \ud83d pair \u2028 — ünï"}])
    assert folder.predictions(0, "val") == [{"generated_text": "half \ud83d pair \u2028 — ünï"}]


def test_the_configuration_file_is_plain_yaml(tmp_path: Path) -> None:
    written = yaml.safe_load(opened(tmp_path).config_file.read_text())
    assert list(written) == list(CONFIG)
