"""Run the tests that need a GPU, and the benchmarks of GPUs; write docs/results/gpu.md.

`python -m benchmarks.gpu` needs a GPU. `python -m benchmarks.gpu PART …` runs single parts, on a CPU, too.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu.machine import gpu_name, on_gpu
from benchmarks.gpu.page import PAGE, page
from benchmarks.outcome import OUT
from services.train.launch import MALLOC_TUNABLES

ROOT = Path(__file__).parents[2]
PARTS = {"generation": 150, "training": 90, "pushes": 150, "sleeping": 90, "runs": 240}  # seconds, at most
TESTS_S = 300
NO_GPU = (
    "make gpu: PyTorch finds no GPU on this machine; expected an NVIDIA GPU, and an environment of "
    "`make setup EXTRA=cuda`. docs/results/gpu.md stays as it is"
)


def main(names: Sequence[str]) -> int:
    if unknown := set(names) - PARTS.keys():
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if names:
        found = {name: measured(name) for name in names}
    elif not on_gpu():
        print(NO_GPU, file=sys.stderr)
        return 2
    else:
        began = perf_counter()
        found = {"tests": tested(), **{name: measured(name) for name in PARTS}}
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


def tested() -> dict[str, Any] | str:
    """Return the numbers of tests that passed, failed and were left out; or what failed."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--durations=0", "tests"]
    done = _run(command, TESTS_S)
    if done is None:
        return f"the tests took longer than {TESTS_S} s"
    print(done.stdout)
    counts = {
        kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    }
    if done.returncode:
        return " ".join(re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)) or done.stdout[-500:]
    return dict(counts)


def measured(name: str) -> dict[str, Any] | str:
    """Return a part's rows, or why there are none."""
    written = OUT / f"gpu_{name}.json"
    written.unlink(missing_ok=True)
    done = _run([sys.executable, "-m", f"benchmarks.gpu.{name}"], PARTS[name])
    if done is None:
        return f"it took longer than {PARTS[name]} s"
    print(done.stdout)
    if done.returncode or not written.exists():
        return (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    rows: dict[str, Any] = json.loads(written.read_text())["rows"]
    return rows


def _run(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "GLIBC_TUNABLES": MALLOC_TUNABLES}
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
