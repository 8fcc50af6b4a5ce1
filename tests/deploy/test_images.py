"""The Dockerfiles: linted by hadolint, pinned, not root, and made of files that are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted(ROOT.glob("deploy/Dockerfile.*"))
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    linted = subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stdout + linted.stderr


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN pip install ray\nUSER root\n")
    linted = subprocess.run([HADOLINT, "--no-color", tmp_path / "Dockerfile"], capture_output=True, text=True)
    assert linted.returncode == 1
    assert {"DL3006", "DL3013", "DL3002"} <= set(re.findall(r"DL\d+", linted.stdout))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_has_the_pins_of_its_kind_and_ends_as_nobody_special(file: Path) -> None:
    text = file.read_text()
    kind = file.suffix.removeprefix(".")
    assert re.findall(r"-r (\S+)", text) == [f"requirements/{kind}.txt"]
    (uv,) = re.findall(r"uv==\S+", text)
    assert uv in (ROOT / "Makefile").read_text()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["1000"]
    assert not re.search(r"\b(ADD|curl|wget http|--trusted-host)\b", text)
    assert re.findall(r"^FROM (\S+)$", text, re.MULTILINE) == ["python:${PYTHON}-slim-bookworm"]
    assert re.findall(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE) == ["3.11"]


def test_the_build_sees_the_packages_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert all((ROOT / name).exists() for name in let_in)
    project = (ROOT / "pyproject.toml").read_text()
    (packages,) = re.findall(r"include = \[(.*)\]", project)
    assert set(re.findall(r'"(\w+)\*"', packages)) <= let_in
    assert "requirements" in let_in and not {".git", ".venv", "runs", "tests"} & let_in
