"""`make gpu`: the page that it writes, and that it says what is missing where there is no GPU."""

import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest
import torch

from benchmarks.gpu.__main__ import PARTS, measured
from benchmarks.gpu.lines import Line, read, write
from benchmarks.gpu.page import ABOUT, PAGE, page
from benchmarks.gpu.pushes import ways

ROOT = Path(__file__).parents[1]


H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def line(part: str, what: str, value: float | str, card: str = H100, commit: str = "aaa1111") -> Line:
    return Line(part, what, value, card, "2026-11-27", commit, "torch 2.13.0")


def test_the_stored_page_is_that_of_the_stored_lines() -> None:
    assert PAGE.read_text() == page(read()), "python -m benchmarks.gpu.page writes it anew"
    assert "**These tests and benchmarks have not run yet.**" in page([])
    assert ABOUT.keys() == PARTS.keys()


def test_a_value_stays_until_a_newer_one_of_its_card_replaces_it() -> None:
    old = line("sleeping", "sleep, s", 0.5), line("sleeping", "wake, s", 0.25)
    new = line("sleeping", "sleep, s", 0.125, commit="bbb2222"), line("sleeping", "sleep, s", 2.0, card=H200)
    text = page([*old, *new])
    assert "| sleep, s | 0.125 | 0.5 (aaa1111) | H100, 2026-11-27, bbb2222 |\n" in text
    assert "| wake, s | 0.25 |  | H100, 2026-11-27, aaa1111 |\n" in text
    assert "| sleep, s | 2 |  | H200, 2026-11-27, aaa1111 |\n" in text


def test_a_failure_stays_until_its_part_writes_lines_on_that_card() -> None:
    measured_before = line("runs", "GRPO: after", 0.75)
    broken = line("runs", "", "no room")
    shown = f"## {ABOUT['runs']}\n\n**Failed** (H100, 2026-11-27, aaa1111): no room\n"
    text = page([measured_before, broken])
    assert shown in text and "| GRPO: after | 0.75 |" in text
    assert shown in page([broken, line("runs", "GRPO: after", 0.5, card=H200)])
    assert "Failed" not in page([broken, line("runs", "GRPO: after", 0.5)])


def test_lines_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    lines = [line("tests", "passed", 7), line("tests", "ein Wert mit Ü", "nicht gemessen")]
    write(tmp_path / "lines.jsonl", lines[:1])
    write(tmp_path / "lines.jsonl", lines[1:])
    assert read(tmp_path / "lines.jsonl") == lines


def test_a_part_that_would_not_fit_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert not measured("generation", perf_counter() + 1)
    assert "generation: left out: it needs 200 s, and 1 s are left" in capsys.readouterr().out


def test_nccl_needs_two_gpus() -> None:
    assert [list(ways(number)) for number in (0, 1, 8)] == [
        ["objects", "gloo"],
        ["objects", "ipc"],
        ["objects", "ipc", "nccl"],
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: make gpu would run")
def test_without_a_gpu_it_says_what_is_missing_and_leaves_the_page() -> None:
    before = PAGE.read_text()
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and PAGE.read_text() == before
    assert "finds no GPU on this machine; expected an NVIDIA GPU" in done.stderr
