"""Where there is no room left: one line that says what is safe, and nothing half written."""

import contextlib
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts.errors import DiskFull, InputError, LearnerLost, RunError
from contracts.processes import disk
from contracts.processes.disk import check_room, full_places, is_full, room_for
from services import cli
from services.runs import checkpoints
from services.runs import full_disk as module
from services.runs.checkpoint_retention import TRAINED
from services.runs.folder import RunFolder
from services.runs.full_disk import explained, what_is_safe
from services.runs.json_lines import append_row, write_atomically
from services.runs.report.report import write_report
from tests.models import make_tiny_model
from tests.runs import Run

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.open(tmp_path, "run", {"seed": 1, "iterations": 9}, "auto")


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond 1,000 bytes: what lies before is still written.

    Inside a test alone: between tests pytest writes, and what it writes to may be a long file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NO_SPACE, True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), True),
        (type("OutOfDiskError", (Exception,), {})("The object cannot be created"), True),
        (ValueError("no such key"), False),
        (RuntimeError("HTTP 413: file too large"), False),
        (RuntimeError("I/O error: File too large (os error 27)"), True),
    ],
)
def test_a_full_disk_is_known_however_it_is_told(error: Exception, expected: bool) -> None:
    assert is_full(error) is expected
    with pytest.raises(DiskFull if expected else type(error)), room_for("file"):
        raise error


def test_a_line_that_has_no_room_leaves_the_file_as_it_was(folder: RunFolder) -> None:
    folder.append_rollout_info(1, {"text": "a" * 900})
    before = (folder.path / "rollout_info.jsonl").read_bytes()

    with (
        small_files(),
        pytest.raises(DiskFull, match=r"rollout_info\.jsonl could not be written: file too large"),
    ):
        folder.append_rollout_info(2, {"text": "a" * 900})

    assert (folder.path / "rollout_info.jsonl").read_bytes() == before


def test_a_file_that_has_no_room_leaves_the_old_one_alone(folder: RunFolder) -> None:
    file = folder.write_predictions(1, "val", [{"generated_text": "a"}])

    with (
        small_files(),
        pytest.raises(DiskFull, match=r"epoch_1_val_split_predictions\.json could not be written"),
    ):
        folder.write_predictions(1, "val", [{"generated_text": "a" * 2000}])

    assert folder.predictions(1, "val") == [{"generated_text": "a"}]
    assert not list(folder.path.glob(".*.tmp")) and file.exists()


def test_a_report_that_has_no_room_says_which_file(folder: RunFolder) -> None:
    for iteration in (1, 2):
        folder.append_rollout_info(iteration, {"reward/mean": iteration / 10})
    with small_files(), pytest.raises(DiskFull, match=r"learning_curves\.png could not be written"):
        write_report(folder)


def test_the_device_that_is_always_full(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="/dev/full could not be written: no space left on device"):
        append_row(Path("/dev/full"), {"iteration": 1})


def saved(folder: RunFolder, iteration: int) -> None:
    checkpoints.save(folder, iteration, lambda path: None, {"iteration": iteration})


def test_what_is_safe_is_told(folder: RunFolder) -> None:
    assert what_is_safe(folder) == (
        f"No checkpoint is in {folder.path} yet. No iteration was finished. Make room, and the same command "
        "starts again"
    )
    for iteration in range(1, 7):
        folder.append_rollout_info(iteration, {})
    saved(folder, 4)
    assert what_is_safe(folder) == (
        f"Safe in {folder.path}: checkpoint 4 and the lines until iteration 4. Not saved: iterations 5 to 6. "
        "Make room, and the same command continues from there"
    )
    saved(folder, 6)
    folder.model.mkdir()
    (folder.model / TRAINED).write_text('{"iteration": 4}')
    assert "model/" not in what_is_safe(folder)
    (folder.model / TRAINED).write_text('{"iteration": 6}')
    assert "checkpoint 6, model/ and the lines until iteration 6. Make room" in what_is_safe(folder)


def test_other_errors_stay_what_they_are_and_a_loss_names_a_full_disk(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, input_error = LearnerLost("the learner died:\n\tpid 7"), InputError("no")
    assert explained(lost, folder) is lost and explained(input_error, folder) is input_error

    monkeypatch.setattr(module, "full_places", lambda places: [Path("/ray")])
    assert explained(input_error, folder) is input_error
    error = explained(lost, folder)
    assert type(error) is RunError
    assert str(error).startswith("the learner died:. There is no room left in /ray. No checkpoint")


def test_a_command_says_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise RuntimeError("\x1b[36mray::Learner\x1b[39m\nOSError: No space left on device")

    monkeypatch.setattr(cli, "dispatch", fails)
    assert cli.main(["train"]) == 1
    assert capsys.readouterr().err == (
        "whetstone train: ray::Learner OSError: No space left on device. "
        "Make room, and type the same command again\n"
    )


def test_nothing_starts_where_nothing_could_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_room(tmp_path / "deep" / "runs", "the run", "choose another output_dir=")
    usage = disk.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: usage._replace(free=5000))

    assert full_places([tmp_path, tmp_path / "nowhere"]) == [tmp_path]
    with pytest.raises(InputError, match=r"5,000 bytes are left on this disk, .* choose another output_dir="):
        check_room(tmp_path / "deep" / "runs", "the run", "choose another output_dir=")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a file system of its own can't be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_checkpoint_that_has_no_room_leaves_nothing_and_the_one_before(small_disk: Path) -> None:
    folder = RunFolder.open(small_disk, "run", {"seed": 1}, "auto")

    def write(size: int) -> Callable[[str], None]:
        return lambda path: (Path(path, "policy.bin").write_bytes(bytes(size)), None)[1]

    checkpoints.save(folder, 2, write(2_000_000), {"iteration": 2})
    with pytest.raises(DiskFull, match="checkpoints/4 could not be written: no space left on device"):
        checkpoints.save(folder, 4, write(3_000_000), {"iteration": 4})

    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["2"]
    assert not checkpoints.damage(folder.checkpoint(2))
    write_atomically(folder.report, "there is room again")


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_run_on_a_full_disk_ends_with_one_line_and_goes_on_once_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model")
    overrides = (f"model.path={model}", "metrics=[]", "iterations=6", "save_every=1", "keep_checkpoints=9")
    run = Run(small_disk, "run", *overrides, "tracking.enabled=false")
    run._screen = tmp_path / "screen"
    try:
        assert run.start().finish() == 1, run.output
        assert run.folder.checkpoints(), run.output
        saved = max(run.folder.checkpoints())
        last = run.output.splitlines()[-1]
        assert f"checkpoints/{saved + 1} could not be written: no space left on device. Safe in " in last
        assert f"checkpoint {saved} and the lines until iteration {saved}" in last
        assert "\x1b" not in run.output and "Traceback" not in run.output
        assert all(path.name.isdecimal() for path in (run.folder.path / "checkpoints").iterdir())
        assert last.removeprefix("whetstone train: ") in run.folder.log.read_text()

        subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    lines = (run.folder.path / "rollout_info.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_a_process_that_cannot_write_its_log_ends_quietly(tmp_path: Path) -> None:
    script = """
import logging, pathlib, sys
from services.runs.tracking.run_log import log_to
from services.runs.tracking.console import open_console
log_to(pathlib.Path("/dev/full"), open_console())
logging.getLogger("somebody").error("lost")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
