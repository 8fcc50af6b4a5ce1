"""Run the tests that need a GPU; record the numbers of passed and skipped tests, and the failures."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.lines import record
from benchmarks.gpu.machine import on_gpu

ROOT = Path(__file__).parents[2]


def main() -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--durations=0", "-rfE", "tests/gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n", flush=True)
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|skipped|failed)", done.stdout)}
    record("tests", counts)
    if done.returncode and on_gpu():
        broken = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
        raise SystemExit(f"Error: {' '.join(broken) or f'pytest ended with {done.returncode}'}")


if __name__ == "__main__":
    main()
