"""Folders and files that were made to harm: models, checkpoints, names, links, modes."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from contracts.errors import InputError
from learner.models.language_models import load_language_model
from learner.settings import ModelSettings
from services import cli
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.runs import checkpoints
from services.runs.folder import RunFolder
from services.runs.report.report import write_report
from services.training.preflight.checks.run_check import examine_run
from tests.models import make_tiny_model
from tests.services.runs.report.test_report import CONFIG, invented_run

# Code that a model brings along; it leaves a mark where it is run.
CODE = """
import pathlib
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
pathlib.Path({mark!r}).touch()
class Config(LlamaConfig): ...
class Model(LlamaForCausalLM): ...
class Tokenizer(PreTrainedTokenizerFast): ...
"""


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(whole_model: Path, tmp_path: Path) -> Path:
    """A model with code in its folder; the mark is at `tmp_path / "ran"`."""
    folder = Path(shutil.copytree(whole_model, tmp_path / "model"))
    (folder / "code.py").write_text(CODE.format(mark=str(tmp_path / "ran")))
    return folder


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def header(shape: int, end: int) -> bytes:
    text = json.dumps({"w": {"dtype": "F32", "shape": [shape], "data_offsets": [0, end]}}).encode()
    return struct.pack("<Q", len(text)) + text


class Touch:
    """An object whose unpickling makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.system, (f"touch {self.file}",)


def test_a_models_own_code_is_not_run_beside_a_class_that_transformers_has(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # to transformers' question
    change(
        model / "config.json", auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    )
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"]})
    settings = ModelSettings(path=str(model))
    read_model(settings)
    load_tokenizer(settings)
    load_language_model(settings)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_of_a_models_own_code_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    change(
        model / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"]},
        tokenizer_class="Tokenizer",
    )
    settings = ModelSettings(path=str(model))
    with pytest.raises(InputError, match=r"its tokenizer is a Tokenizer, .* is never run"):
        read_model(settings)
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_tokenizer(settings)
    assert not (tmp_path / "ran").exists()


def test_no_call_of_transformers_leaves_it_open_whether_code_is_run() -> None:
    calls = [
        (path, call)
        for top in ("contracts", "learner", "reward_servers", "rollout_workers", "services")
        for path in Path(top).rglob("*.py")
        for call in path.read_text().split("from_pretrained(")[1:]
        if "Auto" in path.read_text() and "trust_remote_code=False" not in call[:400]
    ]
    allowed = {"PeftConfig", "PeftModel", "GenerationConfig"}  # they load no code
    assert not [
        path
        for path, _ in calls
        if not any(f"{name}.from_pretrained(" in path.read_text() for name in allowed)
    ]


def test_pickled_weights_call_nothing(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    with pytest.raises(pickle.UnpicklingError):
        load_language_model(ModelSettings(path=str(model)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (struct.pack("<Q", 2**62) + b"{}", "cut short"),
        (header(2**40, 2**42), "cut short"),
        (header(-3, -8), "too long"),
        (b"", "not a safetensors file"),
    ],
)
def test_a_header_that_lies_is_refused(model: Path, content: bytes, why: str) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=why):
        read_model(ModelSettings(path=str(model)))


def run_with_two_checkpoints(place: Path) -> RunFolder:
    folder = RunFolder.open(place, "run", CONFIG, resume="auto")

    def save(path: str) -> None:
        for name in ("policy", "optimizer"):
            save_file({"w": np.ones(8, np.float32)}, f"{path}/{name}.safetensors")
        Path(path, "learner.json").write_text('{"step": 1}')

    for iteration in (1, 2):
        checkpoints.save(folder, iteration, save, {"step": iteration})
    return folder


def flip(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[-3] ^= 1
    file.write_bytes(changed)


def replace_by_a_link(file: Path) -> None:
    flip(file)
    elsewhere = file.parents[3] / "elsewhere"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)


def replace_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_huge(file: Path) -> None:
    file.write_bytes(header(2**40, 2**42))


CHANGES = (flip, Path.unlink, replace_by_a_link, replace_by_a_folder, make_huge)
FILES = ("policy.safetensors", "optimizer.safetensors", "learner.json", "loop.json")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", CHANGES)
def test_a_changed_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, harm: Callable[[Path], None], file: str
) -> None:
    folder = run_with_two_checkpoints(tmp_path)
    harm(folder.checkpoint(2) / file)
    notes: list[str] = []
    assert any(file in finding.found and finding.status != "ok" for finding in examine_run(folder))
    assert checkpoints.newest_whole(folder, notes.append) == (1, folder.checkpoint(1))
    assert file in notes[0] and "no longer used" in notes[0]


def test_forgetting_a_linked_checkpoint_removes_the_link_alone(tmp_path: Path) -> None:
    folder = run_with_two_checkpoints(tmp_path)
    shutil.move(folder.checkpoint(1), tmp_path / "kept")
    folder.checkpoint(1).symlink_to(tmp_path / "kept")
    checkpoints.forget(folder, 1)
    assert (tmp_path / "kept" / "policy.safetensors").exists()
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["2"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/x", "a/b", "a\nb", "a\x00b", "a\x1b[2J", "\u202ea", "x" * 300]
)
def test_a_name_that_is_no_folders_or_would_leave_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        RunFolder.open(tmp_path / "runs", name, CONFIG, resume="auto")
    assert not list(tmp_path.rglob("config.yaml"))


def test_a_page_that_is_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    folder, other = invented_run(tmp_path / "runs", 2), tmp_path / "other"
    other.write_text("mine")
    folder.report.symlink_to(other)
    write_report(folder)
    assert other.read_text() == "mine" and not folder.report.is_symlink()


def test_a_run_in_a_linked_folder_stays_there(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    RunFolder.open(tmp_path / "runs", "run", CONFIG, resume="auto")
    assert (tmp_path / "disk" / "run" / "config.yaml").is_file()


def test_nothing_that_a_command_writes_is_for_all_to_change(tmp_path: Path) -> None:
    words = ["crowd", "page", "likert", "--task", "imdb", "--out", str(tmp_path / "out")]
    before = os.umask(0)
    try:
        assert cli.main(words) == 0
    finally:
        os.umask(before)
    written = [*(tmp_path / "out").rglob("*")]
    assert written and not [path for path in written if path.stat().st_mode & 0o002]
