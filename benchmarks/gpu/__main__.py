"""Run the tests that need a GPU, and the benchmarks of GPUs; write docs/results/gpu.md.

`python -m benchmarks.gpu` needs a GPU. `python -m benchmarks.gpu PART …` runs single parts, on a CPU, too.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from benchmarks.gpu.machine import gpu_name, on_gpu
from benchmarks.gpu.page import PAGE, page
from benchmarks.outcome import OUT
from services.train.launch import MALLOC_TUNABLES

ROOT = Path(__file__).parents[2]
PARTS = ("generation", "training", "pushes", "sleeping", "runs")
WHOLE_S = 1800.0  # for the tests and all parts; a first start of vLLM compiles for more than a minute
LAST_WORDS = re.compile(r"^[\w.]*(Error|Exit|Exception)\b.*")
NO_GPU = (
    "make gpu: PyTorch finds no GPU on this machine; expected an NVIDIA GPU, and an environment of "
    "`make setup EXTRA=cuda`. docs/results/gpu.md stays as it is"
)


def main(names: Sequence[str]) -> int:
    if unknown := set(names) - set(PARTS):
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if names:
        found = {name: measured(name, perf_counter() + WHOLE_S) for name in names}
    elif not on_gpu():
        print(NO_GPU, file=sys.stderr)
        return 2
    else:
        began = perf_counter()
        ends = began + WHOLE_S
        found = {"tests": tested(ends)}
        for name in PARTS:
            found[name] = measured(name, ends)
            # After each part: whatever ends the whole, what was measured stays.
            minutes = (perf_counter() - began) / 60
            PAGE.write_text(page(f"{machine()}, in {minutes:.1f} minutes", found))
        print(f"{PAGE.relative_to(ROOT)} is written")
    failed = [name for name, rows in found.items() if isinstance(rows, str)]
    for name in failed:
        print(f"{name} failed: {found[name]}", file=sys.stderr)
    return 1 if failed else 0


def machine() -> str:
    """Return the GPUs, their memory, and the versions of what computes on them."""
    import torch
    import vllm

    size = torch.cuda.get_device_properties(0).total_memory / 1e9
    gpus = f"{torch.cuda.device_count()} × {gpu_name()} ({size:.0f} GB)"
    return f"{gpus}, torch {torch.__version__}, vLLM {vllm.__version__}"


def tested(ends: float) -> dict[str, Any] | str:
    """Return the numbers of tests that passed, failed and were left out; or what failed."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--durations=0", "tests/gpu"]
    code, told = _run("tests", command, ends)
    if code:
        failed = re.findall(r"^(?:FAILED|ERROR) .*", told, re.MULTILINE)
        return " ".join(failed) or told.strip()[-500:] or f"they ended with {code}"
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|skipped)", told)}


def measured(name: str, ends: float) -> dict[str, Any] | str:
    """Return a part's rows, or why there are none."""
    written = OUT / f"gpu_{name}.json"
    written.unlink(missing_ok=True)
    code, told = _run(name, [sys.executable, "-m", f"benchmarks.gpu.{name}"], ends)
    if code or not written.exists():
        lines = told.strip().splitlines()
        words = [line for line in lines if LAST_WORDS.match(line)] or lines
        return words[-1] if words else f"it ended with {code}"
    rows: dict[str, Any] = json.loads(written.read_text())["rows"]
    return rows


def _run(name: str, command: Sequence[str], ends: float) -> tuple[int, str]:
    """Run a command until a moment of `perf_counter`, and show what it says; return its code and words.

    The words are in a file from the start, so that they stay if this process is ended, too. After that moment
    the command ends with all processes that it started: they would keep the GPU.
    """
    OUT.mkdir(exist_ok=True)
    log = OUT / f"gpu_{name}.log"
    print(f"{name}: see {log.relative_to(ROOT)}", flush=True)
    environment = {**os.environ, "GLIBC_TUNABLES": MALLOC_TUNABLES, "PYTHONUNBUFFERED": "1"}
    late = ""
    with log.open("w") as words:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=words, stderr=words)
        try:
            process.wait(timeout=max(1.0, ends - perf_counter()))
        except subprocess.TimeoutExpired:
            family = [*psutil.Process(process.pid).children(recursive=True), process]
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()
            late = f"\nit was ended: all together may take {WHOLE_S:.0f} s"
    told = log.read_text(errors="replace") + late
    print(told, flush=True)
    return process.returncode, told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
