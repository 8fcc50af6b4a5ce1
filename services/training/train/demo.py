"""`whetstone demo`: train a model from scratch with the whole service on this machine, in minutes.

A small GPT with its own tokenizer first learns to write rows of numbers (supervised). Then PPO, with
rollout workers on Ray, teaches it to write increasing rows. Nothing is downloaded.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from services.models.new_tokenizer import word_tokenizer
from services.runs.folder import RunFolder
from services.terminal.doing import doing
from services.terminal.screens import Screen

NUMBERS = 100  # the vocabulary: 0 to 99, and an end
ROW_LENGTH = 20
WARM_UP_STEPS, WARM_UP_ROWS = 120, 64
END = "<end>"


def demo(overrides: Sequence[str]) -> int:
    """Make a missing start model, train it, and show texts before and after; return the exit code."""
    with doing("reading the configuration"):
        from services.config.compose import run_settings
        from services.training.train.train import train

    start_model = Path("runs/demo-start-model")
    settings = run_settings(["experiment=demo", f"model.path={start_model}", "run_name=demo", *overrides])
    if not (start_model / "model.safetensors").exists():
        print("1/2  a small GPT learns to write rows of numbers (supervised)", flush=True)
        make_start_model(start_model, seed=0)
    print("2/2  PPO: rollout workers write, a reward scores, the learner updates", flush=True)
    code = train(settings)
    if code == 0:
        folder = RunFolder(Path(settings.output_dir).absolute() / settings.run_name)
        show_result(folder, "mean reward (share of the text that is one increasing run)", num_texts=3)
    return code


def make_start_model(folder: Path, seed: int) -> None:
    """Make a two-layer GPT-2 with a word tokenizer, warmed up on number rows that mostly increase."""
    with doing("loading torch"):
        from transformers.utils.logging import disable_progress_bar

        from learner.algorithms.supervised import Supervised
        from learner.learner import Learner
        from learner.settings import LearnerSettings, ModelSettings

    disable_progress_bar()  # its short bars would break our screen
    untrained = folder.with_name(f"{folder.name}-untrained")
    with doing("making the model"):
        tokenizer = save_untrained(untrained, seed)
    learner = Learner(
        ModelSettings(path=str(untrained), dropout=False),  # so small a model needs no dropout
        Supervised(learning_rate=3e-3, minibatch_size=None),
        LearnerSettings(),
        seed=seed,
        iterations=WARM_UP_STEPS,
    )
    rows = number_rows(seed)
    terminal = Screen()
    shown = nullcontext() if terminal.is_terminal else doing("warming the model up")
    steps = range(WARM_UP_STEPS)
    bar = track(steps, description="     warm-up", console=terminal, disable=not terminal.is_terminal)
    with shown:
        for step in bar:
            learner.update([as_rollout(i, next(rows), tokenizer) for i in range(WARM_UP_ROWS)])
            if step == WARM_UP_STEPS - 1:
                learner.export(str(folder))


def save_untrained(folder: Path, seed: int) -> Any:
    """Save random weights and the tokenizer; return the tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = number_tokenizer()
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=2,  # heads of 32, the smallest for vLLM's CPU kernels
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def number_tokenizer() -> Any:
    """Make a tokenizer with a token for each number, and one for the end."""
    from tokenizers import decoders

    words = [END, *map(str, range(NUMBERS))]
    made = word_tokenizer(words, END, unk_token=END, eos_token=END, bos_token=END, pad_token=END)
    made.backend_tokenizer.decoder = decoders.WordPiece(prefix="##")  # words joined by blanks
    return made


def number_rows(seed: int) -> Iterator[list[int]]:
    """Yield endless rows of numbers: mostly steps of 1 to 8 upwards, sometimes any number."""
    draw = random.Random(seed)
    while True:
        row = [draw.randrange(NUMBERS // 2)]
        while len(row) < ROW_LENGTH:
            higher = row[-1] + draw.randint(1, 8)
            goes_up = higher < NUMBERS and draw.random() < 0.75
            row.append(higher if goes_up else draw.randrange(NUMBERS))
        yield row


def as_rollout(index: int, row: Sequence[int], tokenizer: Any) -> Rollout:
    """Make a rollout whose prompt is the row's first two numbers, and whose response is the rest."""
    prompt, response = " ".join(map(str, row[:2])), " ".join(map(str, row[2:]))
    answer = (*tokenizer(response)["input_ids"], tokenizer.eos_token_id)
    turn = Turn(
        observation=tuple(tokenizer(prompt)["input_ids"]),
        tokens=answer,
        text=response,
        behavior_logprobs=(0.0,) * len(answer),
        weight_versions=(0,) * len(answer),
    )
    return Rollout(index, index, Prompt(f"demo/{index}", prompt), (turn,), FinishReason.STOP)


def show_result(folder: RunFolder, title: str, num_texts: int) -> None:
    """Print rewards and texts before and after training."""
    terminal = Screen()
    terminal.print(f"\n{title}")
    table = Table()
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    for split in ("val", "test"):
        evaluations = folder.evaluations(split)
        table.add_row(split, *(f"{evaluations[i]['metrics']['reward/mean']:.3f}" for i in (0, -1)))
    terminal.print(table)
    first, last = folder.prediction_epochs("val")[0], folder.prediction_epochs("val")[-1]
    for before, after in zip(
        folder.whole_predictions(first, "val")[:num_texts],
        folder.whole_predictions(last, "val"),
        strict=False,
    ):
        terminal.print(f"{before['prompt_text']} …", style="bold", highlight=False)
        terminal.print(f"   before  {before['generated_text']}", style="dim", highlight=False)
        terminal.print(f"   after   {after['generated_text']}", highlight=False)
    run = os.path.relpath(folder.path)
    terminal.print(
        f"\nNext: open {run}/report.html. Type `source .venv/bin/activate`, then `whetstone chat {run}`. "
        "README.md shows how to train with a reward of your own.",
        highlight=False,
    )
