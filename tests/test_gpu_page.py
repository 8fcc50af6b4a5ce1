"""`make gpu`: the page that it writes, and that it says what is missing where there is no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.machine import peak_flops
from benchmarks.gpu.page import ABOUT, PAGE, page
from benchmarks.gpu.pushes import ways

ROOT = Path(__file__).parents[1]


def test_until_it_has_run_the_page_says_so() -> None:
    assert "**These tests and benchmarks have not run yet.**" in page(None, {})
    stored = PAGE.read_text()
    assert stored == page(None, {}) or "\nMeasured on " in stored


def test_the_page_shows_each_part_and_which_failed() -> None:
    found = {"sleeping": {"sleep, s": 0.5, "freed, GB": 1234.5, "nccl": "not run"}, "runs": "no room"}
    text = page("1 × NVIDIA H100 (85 GB)", found)
    assert "Measured on 1 × NVIDIA H100 (85 GB).\n" in text and "not run yet" not in text
    assert "| sleep, s | 0.500 |\n| freed, GB | 1,234 |\n| nccl | not run |\n" in text
    assert f"## {ABOUT['runs']}\n\n**Failed:** no room\n" in text
    assert ABOUT.keys() == {"tests", *PARTS}


def test_a_gpu_s_peak_is_that_of_its_own_name() -> None:
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 NVL") == 835e12
    assert [peak_flops(f"NVIDIA {name}") for name in ("L40S", "L40", "L4")] == [362e12, 181e12, 121e12]
    assert peak_flops("NVIDIA GeForce GTX 1080") is None


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
