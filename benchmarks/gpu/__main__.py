"""Measure on a GPU, part by part within some minutes; write docs/results/gpu.md after each.

`python -m benchmarks.gpu --minutes 12` needs a GPU. `python -m benchmarks.gpu PART …` runs single parts, and
on a CPU rehearses them.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import psutil

from benchmarks.gpu.lines import ROOT, read, record_failure, store
from benchmarks.gpu.machine import on_gpu
from benchmarks.gpu.page import PAGE, page
from benchmarks.outcome import OUT

# Seconds that a part needs at least; with fewer left it does not start. The least known parts come first.
PARTS = {
    "iteration": 120.0,
    "training": 60.0,
    "pushes": 150.0,
    "generation": 200.0,
    "runs": 150.0,
    "sleeping": 60.0,
    "tests": 120.0,
}
MOST = 2.5  # factor of these seconds, after which a stuck part leaves its time to the others
MINUTES = 30.0
LAST_WORDS = re.compile(r"^[\w.]*(Error|Exit|Exception)\b.*")
NO_GPU = (
    "make gpu: PyTorch finds no GPU on this machine; expected an NVIDIA GPU, and an environment of "
    "`make setup EXTRA=cuda`. docs/results/gpu.md stays as it is"
)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time for all parts together")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    options = parser.parse_args(words)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not (options.parts or on_gpu()):
        print(NO_GPU, file=sys.stderr)
        return 2
    ends = perf_counter() + 60 * options.minutes
    failed = [name for name in options.parts or PARTS if not measured(name, ends)]
    if on_gpu():
        print(f"{PAGE.relative_to(ROOT)} is written")
    if failed:
        print(f"failed, or left out for want of time: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measured(name: str, ends: float) -> bool:
    """Run a part, which records its lines at once; return whether it completed.

    Write the page after each part, so that no later failure loses its values.
    """
    left = ends - perf_counter()
    if left < PARTS[name]:
        print(f"{name}: left out: it needs {PARTS[name]:.0f} s, and {left:.0f} s are left", flush=True)
        return False
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}"]
    reason = _run(name, command, min(left, MOST * PARTS[name]))
    if reason is not None:
        record_failure(name, reason)
    if on_gpu():
        PAGE.write_text(page(read(store())))
    return reason is None


def _run(name: str, command: Sequence[str], limit_s: float) -> str | None:
    """Run a command and show its output; return None, or the reason of its failure.

    The output goes into a file at once, so it survives this process. After `limit_s` the command ends with
    all processes that it started, because they would keep the GPU.
    """
    from services.training.train.launch import (
        MALLOC_TUNABLES,  # imports Ray, so import late
    )

    OUT.mkdir(exist_ok=True)
    log = OUT / f"gpu_{name}.log"
    print(f"{name}: see {log.relative_to(ROOT)}", flush=True)
    environment = {**os.environ, "GLIBC_TUNABLES": MALLOC_TUNABLES, "PYTHONUNBUFFERED": "1"}
    late = False
    with log.open("w") as words:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=words, stderr=words)
        try:
            process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            late = True
            end_family(process)
    print(log.read_text(errors="replace"), flush=True)
    if late:
        return f"it was ended after {limit_s:.0f} s; the lines until then stay"
    return None if process.returncode == 0 else last_words(log, process.returncode)


def end_family(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants."""
    for member in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def last_words(log: Path, code: int) -> str:
    """Return a log's last line with an error, else its last line, else the exit code."""
    lines = log.read_text(errors="replace").strip().splitlines()
    words = [line for line in lines if LAST_WORDS.match(line)] or lines
    return words[-1] if words else f"it ended with {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
