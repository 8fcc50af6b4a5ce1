"""`whetstone train-reward`: train a classifier or a model of preferences that is then a reward by its name.

overrides ─▶ rows (services/reward_data.py) ─▶ token ids ─▶ epochs (learner/reward_training.py), the best one
kept ─▶ OUTPUT/model, results.json, report.txt, and the command that uses it

In this one process: no Ray, no workers, and a GPU if there is one.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console as Terminal

from contracts.errors import InputError
from services.doing import doing
from services.interrupts import EXIT_INTERRUPTED, StopRequest
from services.readable import duration
from services.reward_data import RewardRow, RewardRows, label_places, read_split
from services.reward_results import Progress, RewardResults, epoch_line
from services.reward_settings import TrainRewardSettings, print_help, settings_from
from services.tasks.base import SPLITS, Split

if TYPE_CHECKING:
    from learner.reward_batches import Example
    from learner.reward_model import RewardModel


def run(argv: Sequence[str]) -> int:
    """Train, and say how to use it; the exit code.

    Raises:
        InputError: a wrong override, no model there, rows that can't be used; before anything is trained.
        LearnerError: the gradient is no longer finite.
    """
    if {"-h", "--help"} & set(argv):
        return print_help()
    started = time.monotonic()
    settings = settings_from(argv)
    with doing("checking model and data"):
        _check_model(settings.model)
        results_folder = _checked_output(settings)
        splits = {
            split: read_split(settings.data, settings.task, settings.objective, split) for split in SPLITS
        }
    places, names = _labels(settings, splits)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    results = RewardResults(results_folder, settings.resolved(), names)
    console = Progress(Terminal())
    stop = StopRequest(lambda: console.note("asked to stop: this ends after the micro-batch"))
    try:
        with doing("loading the model and its tokens", console.note):
            model, examples = _prepared(settings, splits, places, results, console)
        stop.hold()  # from here on it stops between two micro-batches
        _train(settings, model, examples, results, console, stop)
    except KeyboardInterrupt:
        console.stop()
        console.note(results.when_interrupted())
        return EXIT_INTERRUPTED
    finally:
        stop.restore()
        console.stop()
    results.finish(console.terminal, settings.data.join, duration(time.monotonic() - started))
    return 0


def _check_model(model: str) -> None:
    """Refuse one that is not there; whether it loads as a classifier shows when it does."""
    from contracts.hub import use_cache_if_unreachable
    from reward_servers.models.checkpoint import read_config

    use_cache_if_unreachable()
    read_config(model)


def _checked_output(settings: TrainRewardSettings) -> Path:
    """The folder to write into, empty or with an earlier training that may be written over."""
    folder = Path(settings.output).expanduser()
    if folder.is_file():
        raise InputError(f"output={folder} is a file; expected a folder's name")
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if there and "results.json" not in there:
        raise InputError(f"output={folder} holds {there[0]!r} and no results.json: give a folder of its own")
    if there and not settings.overwrite:
        raise InputError(f"output={folder} holds a trained model; output=OTHER, or overwrite=true")
    if Path(settings.model).expanduser().resolve().is_relative_to(folder.resolve()):
        raise InputError(f"output={folder} is where model={settings.model} is; output=OTHER")
    return folder


def _labels(
    settings: TrainRewardSettings, splits: Mapping[Split, RewardRows]
) -> tuple[dict[int | str, int], list[str]]:
    """The outputs' places and names: one for each label, or the one of a model of preferences."""
    widths = {len(row.texts) for found in splits.values() for row in found.rows}
    if len(widths) > 1:
        raise InputError("data: some rows have a label, others are pairs; objective=labels or pairs chooses")
    if widths == {2}:
        return {}, ["reward"]
    places, names = label_places([row.label for row in splits["train"].rows], settings.data.label_names)
    for split, found in splits.items():
        for row in found.rows:
            if row.label not in places:
                raise InputError(
                    f"data.label: a {split} row has the label {row.label!r}, which no training row has; "
                    f"they have: {', '.join(map(str, places))}"
                )
    return places, names


def _prepared(
    settings: TrainRewardSettings,
    splits: Mapping[Split, RewardRows],
    places: Mapping[int | str, int],
    results: RewardResults,
    console: Progress,
) -> tuple["RewardModel", dict[Split, list["Example"]]]:
    """The model, and every row as token ids; pairs that are the same to the model are left out."""
    from learner.reward_model import RewardModel  # imports torch: seconds
    from services.run_model import quiet_transformers

    quiet_transformers()
    model = RewardModel(settings.model, results.names, settings)
    examples: dict[Split, list[Example]] = {}
    for split, found in splits.items():
        examples[split], num_cut = _encoded(model, found.rows, places)
        num_same = len(found.rows) - len(examples[split])
        skipped = found.skipped + Counter({"the same to the model": num_same})
        results.count(split, len(examples[split]), num_cut, skipped)
        if not examples[split]:
            raise InputError(f"data: {split} has no usable row; left out: {dict(skipped)}")
    results.say_what_is_trained(console, model)
    results.say_what_was_left_out(console, model.max_length)
    results.clear()
    return model, examples


def _encoded(
    model: "RewardModel", rows: Sequence[RewardRow], places: Mapping[int | str, int]
) -> tuple[list["Example"], int]:
    """Examples, and how many texts were cut."""
    from learner.reward_batches import Example

    width = len(rows[0].texts)
    encoded, num_cut = model.encode([text for row in rows for text in row.texts])
    pieces = [tuple(encoded[start : start + width]) for start in range(0, len(encoded), width)]
    examples = [
        Example(sequences, row.margin if width == 2 else places[row.label])
        for row, sequences in zip(rows, pieces, strict=True)
        if width == 1 or sequences[0] != sequences[1]
    ]
    return examples, num_cut


def _train(
    settings: TrainRewardSettings,
    model: "RewardModel",
    examples: Mapping[Split, Sequence["Example"]],
    results: RewardResults,
    console: Progress,
    stop: StopRequest,
) -> None:
    """All epochs, the best one saved whenever there is a better one; at last it is loaded and measured."""
    from learner.reward_training import RewardTrainer

    def advance(count: int) -> None:
        console.advance("train", count)
        stop.check()

    trainer = RewardTrainer(model, examples["train"], settings)
    for number in range(1, settings.num_epochs + 1):
        began = time.monotonic()
        console.phase("train", len(examples["train"]))
        trained = trainer.epoch(number, advance)
        measured = results.measure(model, examples["validation"], "validation", console)
        is_better = results.add_epoch(number, trained, measured, settings.best_by)
        if is_better:
            results.keep(model)
        took_s = time.monotonic() - began
        console.note(epoch_line(number, settings.num_epochs, trained, measured, is_better, took_s))
        stop.check()
        if settings.patience and number - results.best_epoch >= settings.patience:
            console.note(f"no better epoch for {settings.patience}: it ends here")
            break
    saved = results.load_kept(settings)  # what will be served, not what is in memory
    for split in ("validation", "test"):
        results.measured[split] = results.measure(saved, examples[split], split, console)
