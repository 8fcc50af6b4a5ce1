"""The driver's own cost at scale: CPU microseconds, bytes and memory a rollout, with simulated partners.

    python -m benchmarks.driver [--short]

A run's loop hands out leases, takes and scores rollouts, and passes batches to a learner. Engines, rewards
and the learner are simulated in the same process. Values cross to them pickled, as by Ray; only the driver's
half of the work counts. A second measurement covers Ray's calls: a fleet takes rollouts from workers behind
Ray, which finish 5,000 a second. Each shape runs in a separate process. `docs/results/studies.md` has the
results.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from benchmarks.driver_parts import GROUP, Border, Shape, controller, lease_source, start_fleet
from benchmarks.outcome import publish
from contracts.processes.garbage import lasting_objects_left_alone
from contracts.rollout import Sampling

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
FLEETS = (
    *(Shape(workers, 16_384, 32) for workers in (1, 16, 64, 256)),
    *(Shape(workers, 128, 32, a_second=32) for workers in (1, 256)),  # long responses: little to take
)
SHORT = tuple(shape for shape in SHAPES if shape.rollouts * shape.tokens <= 1024 * 512)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.driver")
    parser.add_argument("--short", action="store_true", help="only shapes that take seconds")
    parser.add_argument("--shape", help="measure one shape, and print JSON")
    parser.add_argument("--fleet", help="the same of a fleet behind Ray")
    arguments = parser.parse_args(argv)
    if arguments.shape:
        print(json.dumps(measured(Shape(**json.loads(arguments.shape)))))
        return
    if arguments.fleet:
        print(json.dumps(fleet_measured(Shape(**json.loads(arguments.fleet)))))
        return
    fleets = {shape: _in_a_process(shape, "--fleet") for shape in (() if arguments.short else FLEETS)}
    measured_of = {shape: _in_a_process(shape) for shape in (SHORT if arguments.short else SHAPES)}
    numbers = {_name(shape): numbers for shape, numbers in measured_of.items()}
    numbers |= {f"a fleet: {_name(shape)}": numbers_of for shape, numbers_of in fleets.items()}
    publish(
        "driver",
        f"the driver's cost a rollout (at least {AT_LEAST:,} a second on one core)",
        {name: _said(costs) for name, costs in numbers.items()},
        numbers,
    )


def measured(shape: Shape) -> dict[str, float]:
    """Run some iterations; return microseconds and kB a rollout, and the growth of memory in megabytes."""
    border, process = Border(), psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        loop = controller(shape, border, Path(folder))
        with lasting_objects_left_alone():
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


def fleet_measured(shape: Shape) -> dict[str, float]:
    """Take rollouts from a fleet behind Ray; return the driver's microseconds a rollout, and the pace."""
    import ray

    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # Ray's own processes go anywhere
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    fleet = start_fleet(shape)
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)
    leases = lease_source(Sampling(max_tokens=shape.tokens)).lease(shape.rollouts // GROUP)
    started, cpu_s = time.perf_counter(), time.process_time()
    num_found = sum(len(finished) for finished in fleet.generate(leases))
    cpu_s, passed_s = time.process_time() - cpu_s, time.perf_counter() - started
    assert num_found == shape.rollouts
    ray.shutdown()
    speed = {"us": cpu_s / shape.rollouts * 1e6, "a_second": shape.rollouts / passed_s}
    return speed | {"of_a_core": cpu_s / passed_s}


def _forget_peak() -> None:
    """Reset the process's peak memory if the system can."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


def _in_a_process(shape: Shape, option: str = "--shape") -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.driver", option, json.dumps(asdict(shape))]
    as_a_driver = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=as_a_driver)
    costs: Mapping[str, float] = json.loads(done.stdout)
    print(f"{_name(shape)}: {_said(costs)}", file=sys.stderr)
    return costs


def _name(shape: Shape) -> str:
    ahead = ", written ahead" if shape.staleness else ""
    slow = ", slow rewards" if shape.slow_rewards else ""
    pace = f", {shape.a_second} a second" if shape.a_second < AT_LEAST else ""
    return (
        f"{shape.workers} workers, {shape.rollouts:,} rollouts of {shape.tokens:,} tokens{ahead}{slow}{pace}"
    )


def _said(numbers: Mapping[str, float]) -> str:
    if "a_second" in numbers:
        pace = f"at {numbers['a_second']:,.0f} a second {numbers['of_a_core']:.0%} of a core"
        return f"{numbers['us']:,.0f} µs, {pace}"
    return (
        f"{numbers['us']:,.0f} µs ({1e6 / numbers['us']:,.0f} a second), {numbers['kB']:,.1f} kB, "
        f"{numbers['growth_MB']:,.0f} MB more at the peak"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
