"""Does memory level off? The demo's run for 1,000 iterations, and what each of its processes holds meanwhile.

    python -m benchmarks.memory_growth [--iterations N] [KEY=VALUE …]

A process's memory is its unique set: the pages that no other process shares. `docs/results/memory.md` and the
picture beside it hold what came of it.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.outcome import OUT
from services.demo import make_start_model
from services.run_folder import RunFolder

ROOT = OUT / "memory_growth"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
EVERY_S = 2.0
MB = 1e6
ROLES = {"ray::LearnerProcess": "learner", "ray::RolloutWorker": "worker", "ray::ServeReplica": "replica"}

Sample = tuple[int, dict[str, float]]  # iterations done, and MB of each role


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.memory_growth")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args(argv)
    model = ROOT / "start-model"
    if not (model / "model.safetensors").exists():
        make_start_model(model, seed=0)
    samples = list(watched(model, arguments.iterations, arguments.overrides))
    (ROOT / "samples.json").write_text(json.dumps(samples))
    if samples and samples[-1][0] > 1:
        write_page(samples, arguments.overrides)
    return 0


def watched(model: Path, iterations: int, overrides: Sequence[str]) -> Iterator[Sample]:
    """Run the demo, and look at its processes every two seconds."""
    name = f"run-{int(time.time())}"
    command = [
        *(sys.executable, "-m", "services.cli", "train", "experiment=demo", f"model.path={model}"),
        *(f"output_dir={ROOT}", f"run_name={name}", f"iterations={iterations}"),
        *("evaluate_every=100", "save_every=100", *overrides),
    ]
    folder = RunFolder(ROOT / name)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(EVERY_S)
            rows = folder.rollout_info()
            if rows:
                yield rows[-1]["iteration"], memory_of(process.pid)


def memory_of(driver: int) -> dict[str, float]:
    """Return the unique set of the driver and of each part that it started, in MB."""
    found: dict[str, float] = {}
    with contextlib.suppress(psutil.Error):  # it ended a moment ago
        root = psutil.Process(driver)
        found["driver"] = root.memory_full_info().uss / MB
        for child in root.children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                title = child.cmdline()[0]
                role = next((role for start, role in ROLES.items() if title.startswith(start)), None)
                if role is not None:
                    found[role] = found.get(role, 0.0) + child.memory_full_info().uss / MB
    return found


def write_page(samples: Sequence[Sample], overrides: Sequence[str]) -> None:
    """Write the table and the picture."""
    seen = {role for _, memory in samples for role in memory}
    roles = [role for role in ("driver", "learner", "worker", "replica") if role in seen]
    last = samples[-1][0]
    lines = ["| process | MB after a tenth | after half | at the end | MB a 100 iterations, second half |"]
    lines.append("|---|---|---|---|---|")
    for role in roles:
        points = [(iteration, memory[role]) for iteration, memory in samples if role in memory]
        tenth, half, end = (around(points, share * last) for share in (0.1, 0.5, 1.0))
        rate = slope([point for point in points if point[0] > last / 2]) * 100
        lines.append(f"| {role} | {tenth:.0f} | {half:.0f} | {end:.0f} | {rate:+.2f} |")
    draw(samples, roles, RESULTS / "memory.png")
    options = " ".join(overrides) or "the demo's own options"
    page = f"""# Memory over {last:,} iterations

Does memory level off? The demo's run, {last:,} iterations, {options}. A process's memory is its unique
set: the pages that no other process shares. `python -m benchmarks.memory_growth` repeats it.

![Memory of driver, learner, worker and replica by iteration](memory.png)

{chr(10).join(lines)}
"""
    (RESULTS / "memory.md").write_text(page)


def around(points: Sequence[tuple[int, float]], iteration: float) -> float:
    """Return the median of the five samples nearest to an iteration."""
    nearest = sorted(points, key=lambda point: abs(point[0] - iteration))[:5]
    return statistics.median(memory for _, memory in nearest)


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Return MB an iteration, by least squares."""
    if len(points) < 2:
        return 0.0
    return statistics.linear_regression([float(i) for i, _ in points], [memory for _, memory in points]).slope


def draw(samples: Sequence[Sample], roles: Sequence[str], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shape = (8, 2 * len(roles))
    figure, rows = plt.subplots(len(roles), 1, figsize=shape, sharex=True, squeeze=False)
    axes = rows[:, 0]
    for axis, role in zip(axes, roles, strict=True):
        points = [(iteration, memory[role]) for iteration, memory in samples if role in memory]
        axis.plot(*zip(*points, strict=True), linewidth=1.2)
        axis.set_ylabel(f"{role}, MB")
        axis.margins(x=0)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("iteration")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
