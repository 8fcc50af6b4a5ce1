"""The memory of each process of the demo over 1,000 iterations, to see whether it levels off.

    python -m benchmarks.studies.memory_growth [--iterations N] [KEY=VALUE …]

A process's memory is its unique set: the pages that no other process shares. The results are in
`docs/results/memory.md` and the picture beside it.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.outcome import OUT
from services.runs.folder import RunFolder
from services.training.train.demo import make_start_model

ROOT = OUT / "memory_growth"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
EVERY_S = 2.0
MB = 1e6
ROLES = {
    "ray::LearnerProcess": "learner",
    "ray::RolloutWorker": "worker",
    "ray::ServeReplica": "replica",
    "ray::RewardReplica": "replica",
}

Sample = tuple[int, dict[str, float]]  # iterations done, and MB of each role


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.studies.memory_growth")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args(argv)
    model = ROOT / "start-model"
    if not (model / "model.safetensors").exists():
        make_start_model(model, seed=0)
    samples = list(watched(model, arguments.iterations, arguments.overrides))
    (ROOT / "samples.json").write_text(json.dumps(samples))
    if samples and samples[-1][0] >= 4:
        write_page(samples, arguments.overrides)
    return 0


def watched(model: Path, iterations: int, overrides: Sequence[str]) -> Iterator[Sample]:
    """Run the demo, and sample its processes' memory every two seconds."""
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
    """Return the unique set of the driver and each of its parts, in MB."""
    memory: dict[str, float] = {}
    with contextlib.suppress(psutil.Error):  # the process has just ended
        root = psutil.Process(driver)
        memory["driver"] = root.memory_full_info().uss / MB
        for child in root.children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                title = child.cmdline()[0]
                role = next((role for start, role in ROLES.items() if title.startswith(start)), None)
                if role is not None:
                    memory[role] = memory.get(role, 0.0) + child.memory_full_info().uss / MB
    return memory


def write_page(samples: Sequence[Sample], overrides: Sequence[str]) -> None:
    """Write the table and the picture."""
    last = samples[-1][0]
    roles = [role for role in ("driver", "learner", "worker", "replica") if role in samples[0][1]]
    # During the last iteration processes may be ending, or the report being drawn.
    whole = [(iteration, memory) for iteration, memory in samples if iteration < last]
    quarters = [last * share // 4 for share in (1, 2, 3, 4)]
    highest = {role: [highest_until(whole, role, until) for until in quarters] for role in roles}
    lines = [f"| process, highest MB to iteration | {' | '.join(f'{until:,}' for until in quarters)} |"]
    lines += ["|---" * 5 + "|"]
    lines += [f"| {role} | {' | '.join(f'{mb:,.1f}' for mb in row)} |" for role, row in highest.items()]
    most = max(row[-1] - row[-2] for row in highest.values())
    draw(whole, roles, RESULTS / "memory.png")
    options = " ".join(overrides) or "the demo's own options"
    page = f"""# Memory over {last:,} iterations

Does memory level off? The demo ran for {last:,} iterations with {options}. A process's memory is its unique set,
the pages that it shares with no other process. `python -m benchmarks.studies.memory_growth` repeats the run.

![Memory of driver, learner, worker and replica by iteration](memory.png)

{chr(10).join(lines)}

In the last quarter no process's maximum grew by more than {most:.1f} MB.
"""
    (RESULTS / "memory.md").write_text(page)


def highest_until(samples: Sequence[Sample], role: str, iteration: int) -> float:
    """Return a process's highest MB up to an iteration."""
    return max(memory[role] for number, memory in samples if number <= iteration and role in memory)


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
