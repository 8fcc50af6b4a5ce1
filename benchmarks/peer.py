"""Whole iterations of Whetstone and of `trl`: same model, prompts, lengths, epochs and minibatches.

`python -m benchmarks.peer [ALGORITHM-SHAPE …]`, all of them if none is named: `grpo-tiny`, `ppo-gpt2`, …
In `grpo-gpt2-bfloat16` both sides' products are in bfloat16.
trl runs in its own environments (`benchmarks/peers/`). The two sides take turns, so that both see the same
load. Rewards cost next to nothing on either side.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.other_load import OtherLoad
from benchmarks.outcome import OUT, publish, ratio, seconds, silent_console
from benchmarks.peers.work import KL_COEFFICIENT, LEARNING_RATE, WORK, Work
from services.cluster.ray_cluster import cluster
from services.config.compose import run_settings
from services.runs.folder import RunFolder
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import StopRequest
from services.training.train import launch
from services.training.train.loop import controller

PEERS = Path(__file__).parent / "peers"
TRL = {
    "ppo": ("1.12.0", "trl_ppo.py"),
    "grpo": ("1.16.0", "trl_groups.py"),
    "rloo": ("1.16.0", "trl_groups.py"),
}
THEIR_ENVIRONMENT = {  # read when torch, the tokenizers and trl are imported
    "OMP_NUM_THREADS": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
IN_BFLOAT16 = "-bfloat16"
OF_BFLOAT16 = ["learner.autocast=bfloat16", "rollout.dtype=bfloat16"]
OF_GROUPS = [f"algorithm.kl={{placement: loss, coefficient: {KL_COEFFICIENT}}}"]


class Trl:
    """The process of trl's side; each turn is a line in and a line out."""

    def __init__(self, python: str, *command: str | Path) -> None:
        self._process = subprocess.Popen(
            [python, *command],
            env=os.environ | THEIR_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def turn(self) -> list[float]:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        times: list[float] = self._read()["seconds"]
        return times

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"trl's side ended with exit code {self._process.wait()}. To see its error, run "
                f"{self._process.args}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def main(names: list[str]) -> None:
    known = [f"{algorithm}-{shape}" for algorithm, shapes in WORK.items() for shape in shapes]
    if unknown := {name for name in names if name.removesuffix(IN_BFLOAT16) not in known}:
        names_there = f"{', '.join(known)}, each also with {IN_BFLOAT16}"
        raise SystemExit(f"no such comparison: {', '.join(sorted(unknown))}; there are {names_there}")
    for name in names or known:
        compare(name)


def compare(name: str) -> None:
    algorithm, shape = name.removesuffix(IN_BFLOAT16).split("-")
    in_bfloat16 = name.endswith(IN_BFLOAT16)
    work, (version, script) = WORK[algorithm][shape], TRL[algorithm]
    python = subprocess.run([PEERS / "setup.sh", version], capture_output=True, text=True, check=True)
    interpreter, model = python.stdout.split()[-1], OUT / f"peer-{shape}"
    make = [interpreter, PEERS / "make_model.py", shape, model]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    measured: dict[str, list[float]] = {"trl": [], "whetstone": []}
    load = OtherLoad()
    ours = OF_BFLOAT16 if in_bfloat16 else []
    theirs = ["--bfloat16"] if in_bfloat16 else []
    with tempfile.TemporaryDirectory() as folder, laps_of(algorithm, work, model, folder, *ours) as laps:
        trl = Trl(interpreter, PEERS / script, algorithm, shape, model, *theirs)
        laps(work.warm_up)
        load.start()
        for _ in range(work.turns):
            measured["trl"] += trl.turn()
            measured["whetstone"] += laps(work.iterations)
        others = load.share()  # before the processes end, and their seconds with them
    rows: dict[str, Any] = {
        f"{side}, s an iteration": statistics.median(values) for side, values in measured.items()
    }
    rows[f"trl {version} / whetstone"] = ratio(measured["trl"], measured["whetstone"])
    rows["share of the machine that others used"] = others
    batch = f"{work.prompts} prompts × {work.group_size} responses of {work.new_tokens} tokens"
    about = f"{batch}, {work.epochs} epochs, {'bfloat16' if in_bfloat16 else 'float32'}"
    publish(f"peer-{name}", f"{algorithm.upper()} iterations, {shape}: {about}", rows, measured)


@contextmanager
def laps_of(
    algorithm: str, work: Work, model: Path, folder: str, *overrides: str
) -> Iterator[Callable[[int], list[float]]]:
    """Start a run; yield a function that makes iterations and returns the seconds of each."""
    settings = run_settings(
        [
            f"model.path={model}",
            "task=prompts",
            f"task.data_files={model / 'prompts.jsonl'}",
            "reward=length",
            "metrics=[]",
            f"output_dir={folder}",
            f"iterations={work.warm_up + work.turns * work.iterations}",
            f"rollout.max_tokens={work.new_tokens}",
            f"rollout.prompts_per_iteration={work.prompts}",
            f"rollout.group_size={work.group_size}",
            f"rollout.max_concurrent={work.sequences}",
            f"algorithm={algorithm}",
            f"algorithm.num_epochs={work.epochs}",
            f"algorithm.minibatch_size={work.sequences}",
            f"algorithm.learning_rate={LEARNING_RATE}",
            *([] if algorithm == "ppo" else OF_GROUPS),
            *overrides,
        ]
    )
    with cluster(), launch.service(settings, print) as clients:
        run = RunFolder.open(folder, "peer", settings.resolved(), "never")
        tracker = Tracker.start(settings.tracking, folder, "peer")
        loop = controller(settings, clients, run, tracker, silent_console(), StopRequest())
        yield lambda count: [seconds(loop.iterate) for _ in range(count)]
        tracker.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
