"""The driver's own cost at scale: CPU microseconds, bytes and memory a rollout, with simulated partners.

    python -m benchmarks.driver [--short]

A run's own loop hands out leases, takes rollouts, has them scored and gives batches to a learner. Engines,
rewards and the learner are simulated in the same process. Values cross to them pickled, as by Ray, and only
the driver's half of that is counted; Ray's own calls are not. Each shape runs in a process of its own.
`docs/results/driver.md` has the results.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from benchmarks.driver_parts import Border, Shape, controller
from benchmarks.outcome import publish

MB = 1e6
ENOUGH = 4096  # rollouts to measure, in as many iterations as that takes
AT_LEAST = 5000  # rollouts a second on one core
SHAPES = (
    *(Shape(64, rollouts, 512) for rollouts in (64, 1024, 4096, 16_384)),
    *(Shape(workers, 4096, 512) for workers in (1, 16, 256)),
    *(Shape(64, 1024, tokens) for tokens in (32, 2048, 8192)),
    *(Shape(64, rollouts, 512, staleness=1) for rollouts in (1024, 4096, 16_384)),
    *(Shape(1, rollouts, 32, staleness=1, slow_rewards=True) for rollouts in (256, 512, 1024, 2048)),
)
SHORT = tuple(shape for shape in SHAPES if shape.rollouts * shape.tokens <= 1024 * 512)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.driver")
    parser.add_argument("--short", action="store_true", help="only shapes that take seconds")
    parser.add_argument("--shape", help="measure one shape, and print JSON")
    arguments = parser.parse_args(argv)
    if arguments.shape:
        print(json.dumps(measured(Shape(**json.loads(arguments.shape)))))
        return
    found = {shape: _in_a_process(shape) for shape in (SHORT if arguments.short else SHAPES)}
    rows = {_name(shape): _said(numbers) for shape, numbers in found.items()}
    publish(
        "driver",
        f"the driver's cost a rollout (at least {AT_LEAST:,} a second on one core)",
        rows,
        {_name(shape): numbers for shape, numbers in found.items()},
    )


def measured(shape: Shape) -> dict[str, float]:
    """Run some iterations; return microseconds and kB a rollout, and the megabytes by which memory grew."""
    border, process = Border(), psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        loop = controller(shape, border, Path(folder))
        loop.iterate()  # the first: imports, and the stream's first iteration ahead
        _forget_peak()
        held, seconds, num_bytes = process.memory_info().rss, [], border.num_bytes
        rounds = max(1, ENOUGH // shape.rollouts)
        for _ in range(rounds):
            started, beyond_s = time.process_time(), border.beyond_s
            loop.iterate()
            seconds.append(time.process_time() - started - (border.beyond_s - beyond_s))
    return {
        "us": statistics.median(seconds) / shape.rollouts * 1e6,
        "kB": (border.num_bytes - num_bytes) / rounds / shape.rollouts / 1e3,
        "peak_MB": _peak() / MB,
        "growth_MB": max(0.0, _peak() - held) / MB,
    }


def _forget_peak() -> None:
    """Let the process's peak memory begin anew, where the system can."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


def _in_a_process(shape: Shape) -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.driver", "--shape", json.dumps(asdict(shape))]
    found: Mapping[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    )
    print(f"{_name(shape)}: {_said(found)}", file=sys.stderr)
    return found


def _name(shape: Shape) -> str:
    ahead = ", written ahead" if shape.staleness else ""
    slow = ", slow rewards" if shape.slow_rewards else ""
    return f"{shape.workers} workers, {shape.rollouts:,} rollouts of {shape.tokens:,} tokens{ahead}{slow}"


def _said(numbers: Mapping[str, float]) -> str:
    return (
        f"{numbers['us']:,.0f} µs ({1e6 / numbers['us']:,.0f} a second), {numbers['kB']:,.1f} kB, "
        f"peak {numbers['peak_MB']:,.0f} MB"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
