"""`whetstone doctor RUN`: a whole run is said to be whole, and each damage is named with what is safe."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.commands import doctor
from services.runs import checkpoints
from services.runs.checksums import CHECKSUMS, write_checksums
from services.runs.folder import RunFolder
from tests.models import make_tiny_model

CONFIG = {"seed": 1, "iterations": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(tmp_path: Path, model: Path) -> RunFolder:
    """A finished run with everything that one may have."""
    folder = RunFolder.open(tmp_path, "run", CONFIG, "auto")
    for iteration in (2, 4):
        folder.append_rollout_info(iteration, {"reward/mean": 0.5})
        folder.append_evaluation(iteration, "val", {"reward/mean": 0.5})
        folder.write_predictions(iteration, "val", [{"prompt_text": "a"}])
        checkpoints.save(folder, iteration, save, {"iteration": iteration})
    folder.best_file.write_text('{"iteration": 4}')
    folder.model.mkdir()
    for file in model.iterdir():
        os.link(file, folder.model / file.name)
    write_checksums(folder.model)
    return folder


def save(path: str) -> None:
    (Path(path) / "policy.bin").write_bytes(os.urandom(5000))


def spoil(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # of a link the other name stays what it was
    path.write_bytes(content[:-2] + b"\xff" + content[-1:])


def test_a_whole_run_is_said_to_be_whole(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run([str(run.path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.endswith("This run is whole; the same command continues from checkpoint 4.")
    assert "✗" not in output and "!" not in output
    assert "rollout_info.jsonl 2 lines" in output and "val predictions 2 evaluations" in output
    assert "checkpoints/4 2 files, 5.02 kB, as they were written" in output


LINES, TEXTS = "rollout_info.jsonl", "epoch_2_val_split_predictions.json"
DAMAGE: dict[str, tuple[Callable[[RunFolder], None], str]] = {
    "config.yaml": (lambda run: run.config_file.write_text("[1, 2"), "can't be read"),
    LINES: (lambda run: (run.path / LINES).write_text("{\n"), "line 1: it is not JSON"),
    "val_split_metrics.jsonl": (
        lambda run: (run.path / "val_split_metrics.jsonl").write_text("[]\n"),
        "line 1: expected an object",
    ),
    TEXTS: (lambda run: (run.path / TEXTS).write_text("{"), "is damaged: it is not JSON"),
    "checkpoints/best.json": (lambda run: run.best_file.write_text("{"), "it is not JSON"),
    "checkpoints/4": (
        lambda run: spoil(run.checkpoint(4) / "policy.bin"),
        "policy.bin is not what was",
    ),
    "checkpoints/2": (lambda run: (run.checkpoint(2) / "loop.json").unlink(), "loop.json is missing"),
    "model": (
        lambda run: spoil(run.model / "model.safetensors"),
        "model.safetensors is not what was",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_named_with_what_is_safe(
    run: RunFolder, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    harm, why = DAMAGE[name]
    harm(run)

    assert doctor.run([str(run.path)]) == 2
    output = " ".join(capsys.readouterr().out.split())
    safe = 2 if name == "checkpoints/4" else 4
    assert output.endswith(
        f"Damaged: {name}. Everything else is safe; the same command continues from checkpoint {safe}."
    )

    assert doctor.run([str(run.path), "--json"]) == 2
    (damaged,) = [load for load in json.loads(capsys.readouterr().out) if load["status"] == "damaged"]
    assert damaged["topic"] == name and why in damaged["found"] and damaged["remedy"]


def test_nothing_is_changed_by_looking(run: RunFolder) -> None:
    spoil(run.checkpoint(4) / "policy.bin")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    doctor.run([str(run.path)])
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_without_checksums_the_form_is_checked(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (run.checkpoint(2), run.model):
        (folder / CHECKSUMS).unlink()
    assert doctor.run([str(run.path)]) == 0
    assert capsys.readouterr().out.count("without checksums") == 2

    spoilt = run.model / "model.safetensors"
    content = spoilt.read_bytes()
    spoilt.unlink()
    spoilt.write_bytes(content[:-1])
    assert doctor.run([str(run.path)]) == 2
    assert "cut short" in " ".join(capsys.readouterr().out.split())


def test_what_is_set_aside_or_left_over_is_told(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(run.checkpoint(4) / "policy.bin")
    checkpoints.set_damaged_aside(run, lambda text: None)
    (run.path / "checkpoints" / "6.unfinished").mkdir()

    assert doctor.run([str(run.path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "was damaged and set aside → delete it" in output
    assert "6.unfinished" not in output  # this very process runs it, and may be writing
    assert output.endswith("the same command continues from checkpoint 2.")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        doctor.run([str(tmp_path / "nowhere")])
