"""Turns of a trl trainer: `{"ready": true}` after its warm-up, then a line of JSON for each line of input.

So a driver can alternate two warm sides on one machine. Only JSON goes to standard output.
"""

import argparse
import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import PrinterCallback, TrainerCallback
from work import WORK, Work

OPTIONS: dict[str, Any] = {  # every trainer's options: disable all that takes time without training
    "gradient_accumulation_steps": 1,
    "lr_scheduler_type": "constant",
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "dataloader_pin_memory": False,
    "logging_strategy": "no",
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
BuildTrainer = Callable[[Path, Work, int, str], Any]  # folder, work, iterations, output folder


class Stopwatch(TrainerCallback):
    """Timer of whole iterations, from the end of one to the end of the next."""

    def __init__(self, work: Work, answers: TextIO) -> None:
        self._work, self._answers = work, answers
        self._laps: list[float] = []
        self._turns = 0
        self._is_warm = False
        self._last = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._laps.append(time.perf_counter() - self._last)
        if len(self._laps) == (self._work.iterations if self._is_warm else self._work.warm_up):
            self._hand_over()
        self._last = time.perf_counter()

    def _hand_over(self) -> None:
        message: dict[str, Any] = {"seconds": self._laps} if self._is_warm else {"ready": True}
        print(json.dumps(message), file=self._answers, flush=True)
        self._turns += self._is_warm
        self._laps, self._is_warm = [], True
        if self._turns < self._work.turns and not sys.stdin.readline():
            raise SystemExit  # the driver has ended


def read_prompts(folder: Path, work: Work) -> list[str]:
    """Read the prompts, in order."""
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines][: work.prompts]


def serve(algorithms: tuple[str, ...], build: dict[str, BuildTrainer]) -> None:
    """Train with the algorithm and the shape that the command line names, in turns.

    Some of trl's trainers collect garbage twice an iteration, and search all imports. gc.freeze() avoids
    this search, as a script around trl can.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithm", choices=algorithms)
    parser.add_argument("shape", choices=("tiny", "gpt2"))
    parser.add_argument("folder", type=Path, help="the folder that make_model.py wrote")
    parser.add_argument("--bfloat16", action="store_true", help="products in bfloat16, by autocast")
    arguments = parser.parse_args()
    OPTIONS["bf16"] = arguments.bfloat16
    work = WORK[arguments.algorithm][arguments.shape]
    torch.manual_seed(0)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as output:
        iterations = work.warm_up + work.iterations * work.turns
        trainer = build[arguments.algorithm](arguments.folder, work, iterations, output)
        trainer.remove_callback(PrinterCallback)  # prints the metrics of every iteration
        trainer.add_callback(Stopwatch(work, answers))
        gc.freeze()
        trainer.train()
