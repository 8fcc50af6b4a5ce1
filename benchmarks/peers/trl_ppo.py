"""Time whole PPO iterations of trl's experimental trainer on the folder that `make_model.py` wrote.

    python trl_ppo.py FOLDER              two iterations to warm up, then ten: one line of JSON
    python trl_ppo.py FOLDER --parts      the same work in bare transformers and PyTorch: one line of JSON
    python trl_ppo.py FOLDER --turns 5    the line {"ready": true}; then, for each line on standard input, one
                                          turn of ten iterations and its line of JSON: so a driver can let two
                                          sides take turns

Only JSON goes to standard output. Run it with the Python whose path `setup.sh` prints.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

THREADS = 2
os.environ.update(  # read when torch, the tokenizers and trl are imported
    OMP_NUM_THREADS=str(THREADS),
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    CUDA_VISIBLE_DEVICES="",
    TRL_EXPERIMENTAL_SILENCE="1",
)

import torch  # noqa: E402
from bare_loop import bare_iterations  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer  # noqa: E402

PROMPTS, NEW_TOKENS, EPOCHS, LEARNING_RATE = 64, 32, 4, 1e-5
Laps = list[dict[str, float]]


class FreeReward(torch.nn.Module):
    """The cheapest reward model that trl accepts: 1 if the text's last token has an odd id, else 0.

    trl calls `reward.<base_model_prefix>(input_ids=...)`, then `reward.score` on the last hidden states.
    """

    base_model_prefix = "parity"
    score = torch.nn.Identity()

    def parity(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Return a hidden state of width 1 for every token."""
        return SimpleNamespace(hidden_states=((input_ids % 2).float().unsqueeze(-1),))


class Stopwatch(TrainerCallback):
    """A timer of iterations and their parts, which gives the laps of the warm-up, then of every turn."""

    def __init__(self, warmup: int, iterations: int, hand_over: Callable[[Laps], None]) -> None:
        self.lap_count, self.iterations, self.hand_over = warmup, iterations, hand_over
        self.laps: Laps = []
        self.marks: dict[str, float] = {}

    def watch(self, trainer: PPOTrainer) -> None:
        """Mark the end of generation by the reference's first call, of scoring by the trained pair's."""
        trainer.ref_model.register_forward_pre_hook(lambda *_: self._mark("generated"))
        trainer.model.register_forward_pre_hook(lambda *_: self._mark("scored"))

    def _mark(self, event: str) -> None:
        self.marks.setdefault(event, time.perf_counter())

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._mark("started")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._mark("updated")
        started, generated, scored, updated = (
            self.marks[event] for event in ("started", "generated", "scored", "updated")
        )
        self.laps.append(
            {
                "iteration": updated - started,
                "generate": generated - started,
                "score": scored - generated,
                "update": updated - scored,
            }
        )
        if len(self.laps) == self.lap_count:
            self.hand_over(self.laps)
            self.laps, self.lap_count = [], self.iterations
        self.marks = {"started": time.perf_counter()}


def read_prompts(folder: Path) -> list[str]:
    """Read the prompts, in order."""
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def build_trainer(folder: Path, iterations: int, output: str, stopwatch: Stopwatch) -> PPOTrainer:
    """Build trl's trainer in the documented way, without all that takes time and trains nothing."""
    settings = PPOConfig(
        output_dir=output,
        per_device_train_batch_size=PROMPTS,
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=EPOCHS,
        total_episodes=iterations * PROMPTS,
        response_length=NEW_TOKENS,
        local_rollout_forward_batch_size=PROMPTS,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        stop_token=None,
        missing_eos_penalty=None,
        num_sample_generations=0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(folder),
        ref_model=AutoModelForCausalLM.from_pretrained(folder),
        reward_model=FreeReward(),
        value_model=AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1),
        train_dataset=Dataset.from_dict({"input_ids": tokenizer(read_prompts(folder))["input_ids"]}),
        callbacks=[stopwatch],
    )
    trainer.remove_callback(PrinterCallback)  # prints the metrics of every iteration
    stopwatch.watch(trainer)
    return trainer


def summary(what: str, laps: Laps) -> dict[str, Any]:
    """Return one line of JSON: the seconds of every iteration, their median, and the parts' medians."""
    median = {part: round(statistics.median(lap[part] for lap in laps), 4) for part in laps[0]}
    return {
        "what": what,
        "seconds": [round(lap["iteration"], 4) for lap in laps],
        "median": median["iteration"],
        "sequences_per_second": round(PROMPTS / median["iteration"], 2),
        "parts": {part: seconds for part, seconds in median.items() if part != "iteration"},
        "shape": {"prompts": PROMPTS, "new_tokens": NEW_TOKENS, "epochs": EPOCHS, "minibatches": 1},
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("trl", "torch", "transformers")},
    }


def time_trl(
    folder: Path, iterations: int, warmup: int, turns: int, freeze_gc: bool, answers: TextIO
) -> None:
    """Train with trl and answer each turn with one line of JSON; `turns` of 0 is one turn without waiting.

    trl collects garbage twice an iteration, mostly searching imported modules; `freeze_gc` spares it that.
    trl's documentation doesn't ask for this, but a script around trl could do it.
    """
    what = "trl PPO, gc.freeze" if freeze_gc else "trl PPO"
    handed_over = 0

    def hand_over(laps: Laps) -> None:
        nonlocal handed_over
        if handed_over:
            answer(summary(what, laps), answers)
        elif turns:
            answer({"ready": True}, answers)
        if handed_over < turns and not sys.stdin.readline():
            raise SystemExit  # the driver has ended
        handed_over += 1

    with tempfile.TemporaryDirectory() as output:
        total = warmup + iterations * max(turns, 1)
        trainer = build_trainer(folder, total, output, Stopwatch(warmup, iterations, hand_over))
        if freeze_gc:
            gc.freeze()
        trainer.train()


def time_parts(folder: Path, iterations: int, warmup: int, answers: TextIO) -> None:
    """Run the bare loop and answer with one line of JSON."""
    laps = bare_iterations(
        policy=AutoModelForCausalLM.from_pretrained(folder),
        reference=AutoModelForCausalLM.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        prompts=read_prompts(folder),
        new_tokens=NEW_TOKENS,
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
    )
    answer(summary("bare PyTorch", list(islice(laps, warmup, warmup + iterations))), answers)


def answer(line: dict[str, Any], answers: TextIO) -> None:
    """Write one line at once, as a driver waits for it."""
    print(json.dumps(line), file=answers, flush=True)


def read_command_line() -> argparse.Namespace:
    """Read the folder and the mode; refuse counts below 1 and a folder that make_model.py didn't write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder that make_model.py wrote")
    parser.add_argument("--iterations", type=int, default=10, help="timed iterations of every turn")
    parser.add_argument("--warmup", type=int, default=2, help="iterations before the timed ones")
    parser.add_argument("--freeze-gc", action="store_true", help="spare trl most of its garbage collections")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--turns", type=int, default=0, help="turns, each started by a line on stdin")
    mode.add_argument("--parts", action="store_true", help="bare transformers and PyTorch instead of trl")
    arguments = parser.parse_args()
    if min(arguments.iterations, arguments.warmup) < 1:
        parser.error("--iterations and --warmup must be at least 1")
    if not (arguments.folder / "prompts.jsonl").is_file():
        parser.error(f"{arguments.folder} has no prompts.jsonl; run: make_model.py {arguments.folder}")
    return arguments


def main() -> None:
    """Measure what the command line asks for."""
    arguments = read_command_line()
    folder, iterations, warmup = arguments.folder, arguments.iterations, arguments.warmup

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # for libraries' own output
        if arguments.parts:
            time_parts(folder, iterations, warmup, answers)
        else:
            time_trl(folder, iterations, warmup, arguments.turns, arguments.freeze_gc, answers)


if __name__ == "__main__":
    main()
