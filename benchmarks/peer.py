"""Whole PPO iterations of Whetstone and of `trl`: same model, prompts, lengths, epochs and minibatch.

trl runs in its own environment (`benchmarks/peers/`). The two take turns of five iterations, so that both see
the same load. Rewards cost next to nothing on either side.
"""

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.outcome import OUT, publish, ratio, seconds, silent_console
from services.cluster.ray_cluster import cluster
from services.config.compose import run_settings
from services.runs.folder import RunFolder
from services.terminal.interrupts import StopRequest
from services.tracking.tracker import Tracker
from services.train import launch
from services.train.loop import controller

PEERS = Path(__file__).parent / "peers"
TURNS, ITERATIONS, WARM_UP, PROMPTS = 5, 5, 4, 64


class Trl:
    """The process of trl's side; each turn is a line in and a line out."""

    def __init__(self, python: str, model: Path, *options: str) -> None:
        command = [python, str(PEERS / "trl_ppo.py"), str(model)]
        counts = ["--turns", str(TURNS), "--iterations", str(ITERATIONS), "--warmup", "2"]
        self._process = subprocess.Popen(
            [*command, *counts, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert json.loads(self._read())["ready"]

    def turn(self) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._read())
        return found

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def main() -> None:
    python = subprocess.run([PEERS / "setup.sh"], capture_output=True, text=True, check=True).stdout.split()[
        -1
    ]
    model = OUT / "peer-model"
    subprocess.run([python, PEERS / "make_model.py", model], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        measured = take_turns(python, model, folder)
    rows: dict[str, Any] = {
        f"{name}, s an iteration": statistics.median(values) for name, values in measured.items()
    }
    rows |= {f"{name}, sequences/s": PROMPTS / statistics.median(values) for name, values in measured.items()}
    for name in measured:
        if name != "whetstone":
            rows[f"whetstone / {name}"] = ratio(measured[name], measured["whetstone"])
    publish(
        "peer",
        "PPO iterations: 64 prompts of 8 to 16 tokens, 32 new, 4 epochs, one minibatch",
        rows,
        measured,
    )


def take_turns(python: str, model: Path, folder: str) -> dict[str, list[float]]:
    settings = run_settings(
        [
            f"model.path={model}",
            "task=prompts",
            f"task.data_files={model / 'prompts.jsonl'}",
            "reward=length",
            "metrics=[]",
            f"output_dir={folder}",
            f"iterations={WARM_UP + TURNS * ITERATIONS}",
            "rollout.max_tokens=32",
            f"rollout.prompts_per_iteration={PROMPTS}",
            f"rollout.max_concurrent={PROMPTS}",
            "algorithm.num_epochs=4",
            f"algorithm.minibatch_size={PROMPTS}",
            "algorithm.learning_rate=1e-5",
        ]
    )
    measured: dict[str, list[float]] = {"trl": [], "trl, gc.freeze": [], "whetstone": []}
    sides = {"trl": Trl(python, model), "trl, gc.freeze": Trl(python, model, "--freeze-gc")}
    with cluster(), launch.service(settings, print) as clients:
        run = RunFolder.open(folder, "peer", settings.resolved(), "never")
        tracker = Tracker.start(settings.tracking, folder, "peer")
        loop = controller(settings, clients, run, tracker, silent_console(), StopRequest())
        laps = _laps(loop.iterate)
        laps(WARM_UP)
        for _ in range(TURNS):
            for name, side in sides.items():
                measured[name] += side.turn()["seconds"]
            measured["whetstone"] += laps(ITERATIONS)
        tracker.finish()
    return measured


def _laps(iterate: Callable[[], None]) -> Callable[[int], list[float]]:
    return lambda count: [seconds(iterate) for _ in range(count)]


if __name__ == "__main__":
    main()
