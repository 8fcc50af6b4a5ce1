"""The Makefile's choice of a Python, with stand-ins that tell their version, in a folder without .venv."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
REFUSES = "echo 'pyenv: command not found' >&2; exit 127"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "bin").mkdir()
    return tmp_path


def put(place: Path, name: str, does: str) -> None:
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{does}\n")
    file.chmod(0o755)


def make(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make on a PATH where only the stand-ins are a Python."""
    make_itself = shutil.which("make")
    assert make_itself is not None
    for tool in ("sh", "head", "test", "rm", "touch", "echo"):
        (place / "bin" / tool).unlink(missing_ok=True)
        (place / "bin" / tool).symlink_to(str(shutil.which(tool)))
    variables = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        [make_itself, "setup", "EXTRA=cpu", *words],
        cwd=place,
        env=variables | {"PATH": str(place / "bin")},
        capture_output=True,
        text=True,
    )


def test_the_first_python_that_runs_and_fits_is_taken(place: Path) -> None:
    put(place, "bin/python3.11", REFUSES)
    put(place, "bin/python3.13", "echo 3.13")
    put(place, "bin/python3", "echo 3.12")
    assert "python3.13 -m venv .venv" in make(place, "-n").stdout
    put(place, "bin/python3.12", "echo 3.12")
    assert "python3.12 -m venv .venv" in make(place, "-n").stdout
    assert "python3.13 -m venv .venv" in make(place, "-n", "PYTHON=python3.13").stdout


def test_an_environment_that_fits_stays_and_another_one_is_made_anew(place: Path) -> None:
    put(place, "bin/python3.12", "echo 3.12")
    put(place, ".venv/bin/python", "echo 3.13")
    assert "python3.12 -m venv" not in make(place, "-n").stdout
    put(place, ".venv/bin/python", 'case "$1" in -c) echo 3.10;; esac')
    done = make(place)
    assert "making .venv anew with python3.12, Python 3.12: it has 3.10" in done.stdout
    assert done.returncode != 0 and not (place / ".venv").exists()  # the stand-in makes no environment


def test_an_environment_whose_python_is_gone_is_made_anew(place: Path) -> None:
    put(place, "bin/python3.12", "echo 3.12")
    for stamp in (".python-3.12", ".ready-cpu-3.12"):
        put(place, f".venv/{stamp}", "")
    put(place, ".venv/bin/python", "echo 3.12")
    assert "Nothing to be done" in make(place).stdout
    (place / ".venv/bin/python").unlink()
    (place / ".venv/bin/python").symlink_to(place / "removed/python3.12")
    assert "making .venv anew with python3.12, Python 3.12: it has none that runs" in make(place).stdout


def test_a_variable_of_the_environment_names_no_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, "bin/python3.12", "echo 3.12")
    monkeypatch.setenv("PYTHON", "python2")
    assert "python3.12 -m venv .venv" in make(place, "-n").stdout


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("PYTHON=python3.10", "python3.10 is Python 3.10"),
        ("PYTHON=python3.9", "python3.9 does not run ("),
        ("PYTHON=python3.8", "python3.8 does not run (pyenv: command not found)"),
        ("-s", "the PATH has none that runs"),
    ],
)
def test_a_python_that_does_not_fit_is_refused_by_name(place: Path, word: str, reason: str) -> None:
    put(place, "bin/python3.10", "echo 3.10")
    put(place, "bin/python3.8", REFUSES)
    done = make(place, word)
    assert done.returncode == 2
    assert f"Whetstone needs Python 3.11, 3.12 or 3.13: {reason}" in done.stderr
    assert "make setup PYTHON=/path/to/python3.13" in done.stderr
    assert not (place / ".venv").exists()


def test_all_files_name_the_same_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pythons = re.findall(r"^PYTHONS := (.*)$", MAKEFILE, re.MULTILINE)[0].split()
    first, last = pythons[0], pythons[-1]
    assert project["project"]["requires-python"] == f">={first},<3.{int(last.split('.')[1]) + 1}"
    named = [
        classifier.rpartition(" ")[2]
        for classifier in project["project"]["classifiers"]
        if ":: Python ::" in classifier
    ]
    assert named == pythons
    assert project["tool"]["mypy"]["python_version"] == first
    assert project["tool"]["ruff"]["target-version"] == f"py{first.replace('.', '')}"
    in_words = f"{', '.join(pythons[:-1])} or {last}"
    assert all(in_words in text for text in (MAKEFILE, (ROOT / "README.md").read_text()))
    assert in_words in (ROOT / "docs/set-up.md").read_text()
