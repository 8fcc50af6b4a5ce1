"""Provenance of a run: digests by another program, commits of a real repository, one entry a start."""

import json
import subprocess
from pathlib import Path

import pytest

from services.runs import checkpoints, provenance
from services.runs.folder import RunFolder


def git(*words: str, cwd: Path) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    return subprocess.check_output(["git", *author, *words], cwd=cwd, text=True).strip()


def test_a_files_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"a row\n" * 300_000)  # more than one block
    (record,) = provenance.data_files({"task": {"name": "prompts", "data_files": {"train": str(file)}}})
    assert record["sha256"] == subprocess.check_output(["sha256sum", file], text=True).split()[0]
    assert (record["split"], record["path"]) == ("train", str(file))


def test_a_folder_has_an_entry_for_each_file(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(name)
    files = provenance.data_files({"task": {"data_files": str(tmp_path)}, "data": {"folder": str(tmp_path)}})
    assert [Path(record["path"]).name for record in files] == ["test.jsonl", "train.jsonl"] * 2
    assert provenance.data_files({"task": {"name": "imdb"}, "data": None}) == []


def test_the_commit_is_the_working_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.gather({})["commit"] is None
    git("init", "-q", cwd=tmp_path)
    (tmp_path / "my_rewards.py").write_text("one")
    git("add", ".", cwd=tmp_path)
    git("commit", "-q", "-m", "first", cwd=tmp_path)
    known = provenance.gather({})
    assert known["commit"] == git("rev-parse", "HEAD", cwd=tmp_path) and not known["changed"]
    (tmp_path / "my_rewards.py").write_text("two")
    assert provenance.gather({})["changed"]


def test_each_start_adds_an_entry(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", {"iterations": 1}, resume="auto")
    first = provenance.record(folder, {})
    provenance.record(folder, {})
    assert len(provenance.starts(folder)) == 2 and provenance.starts(folder)[0] == first
    assert {"python", "versions", "command"} <= set(first) and "torch" in first["versions"]
    folder.provenance.write_text("{")
    assert provenance.starts(folder) == []


def saved(folder: RunFolder, iteration: int) -> None:
    checkpoints.save(folder, iteration, lambda path: None, {"iteration": iteration})


def test_a_resume_names_data_and_models_that_are_not_those_it_began_with(tmp_path: Path) -> None:
    teacher, file = tmp_path / "teacher", tmp_path / "train.jsonl"
    teacher.mkdir()
    weights = bytearray(9_000_000)
    (teacher / "model.safetensors").write_bytes(weights)
    config = {
        "model": {"path": "gpt2", "reference": {"path": str(teacher)}},
        "task": {"data_files": {"train": str(file)}},
    }
    folder = RunFolder.open(tmp_path, "run", config, resume="auto")

    def changed(text: str) -> list[str]:
        file.write_text(text)
        provenance.record(folder, config)
        return provenance.changed_since_begin(folder)

    assert changed("of a start that failed") == changed("one") == []  # the second start began anew
    saved(folder, 1)
    assert changed("one") == []
    assert changed("two") == ["train data train.jsonl"]
    weights[4_500_000:4_700_000] = b"a" * 200_000
    (teacher / "model.safetensors").write_bytes(weights)
    assert changed("one") == [f"model.reference.path {teacher}"]


def test_a_run_of_an_older_version_goes_on_without_a_word_of_its_models(tmp_path: Path) -> None:
    config = {"model": {"path": str(tmp_path)}}
    folder = RunFolder.open(tmp_path, "run", config, resume="auto")
    folder.provenance.write_text('[{"command": "whetstone train", "data": []}]')
    saved(folder, 1)
    provenance.record(folder, config)
    assert provenance.changed_since_begin(folder) == []


def test_other_files_in_the_folder_of_the_data_are_no_change(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("1")
    config = {"task": {"name": "prompts", "data_files": str(data)}}
    folder = RunFolder.open(tmp_path, "run", config, resume="auto")
    provenance.record(folder, config)
    saved(folder, 1)
    (data / "written.jsonl").write_text("2")
    provenance.record(folder, config)
    assert provenance.changed_since_begin(folder) == []
    (data / "dev.tsv").write_text("3")
    provenance.record(folder, config)
    assert provenance.changed_since_begin(folder) == ["all data dev.tsv"]


def test_starts_of_an_older_version_with_other_data_tell_nothing(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("1")
    config = {"task": {"name": "prompts", "data_files": str(data)}}
    folder = RunFolder.open(tmp_path, "run", config, resume="auto")
    old = [{"data": [{"split": "all", "path": str(data), "sha256": digest}]} for digest in ("1f", "2e")]
    folder.provenance.write_text(json.dumps(old))
    saved(folder, 1)
    provenance.record(folder, config)
    assert provenance.changed_since_begin(folder) == []
