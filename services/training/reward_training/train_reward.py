"""Train a classifier or a model of preferences, for use as a reward (`whetstone train-reward`).

overrides ─▶ rows (data.py) ─▶ token ids ─▶ epochs (learner/reward_models/training.py) ─▶ the best epoch's
OUTPUT/model, results.json, report.txt, and the command that uses the model

Training runs in this process, without Ray, on a GPU if there is one.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.adapters.merging import whole_model
from contracts.errors import InputError
from services.data.tasks.base import SPLITS, Split
from services.runs.tracking.progress import Progress
from services.terminal.doing import doing
from services.terminal.interrupts import EXIT_INTERRUPTED, StopRequest
from services.terminal.readable import duration
from services.terminal.screens import Screen
from services.training.reward_training.data import RewardRow, RewardRows, label_places, read_split
from services.training.reward_training.results import RewardResults, epoch_line
from services.training.reward_training.settings import TrainRewardSettings

if TYPE_CHECKING:
    from learner.reward_models.batches import Example
    from learner.reward_models.model import RewardModel


def train_reward(settings: TrainRewardSettings) -> int:
    """Train, and print how to use the result. Return the exit code.

    Raises:
        InputError: the model is missing, or rows can't be used; raised before training.
        LearnerError: the gradient is no longer finite.
    """
    started = time.monotonic()
    with doing("checking model and data"):
        _check_model(settings.model)
        results_folder = _checked_output(settings)
        splits = {
            split: read_split(settings.data, settings.task, settings.objective, split) for split in SPLITS
        }
    places, names = _labels(settings, splits)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    results = RewardResults(results_folder, settings.resolved(), names)
    console = Progress(Screen())
    for line in splits["train"].not_read:
        console.note(line)
    stop = StopRequest(lambda: console.note("stopping after this micro-batch"))
    try:
        with doing("loading the model and its tokens", console.note):
            model, examples = _prepared(settings, splits, places, results, console)
        stop.hold()  # from here on a stop waits for the micro-batch
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
    """Reject a missing model. Loading shows whether it is a classifier."""
    from contracts.network.hub import use_cache_if_unreachable
    from reward_servers.models.checkpoint import read_config

    use_cache_if_unreachable()
    read_config(whole_model(model, where="model"))


def _checked_output(settings: TrainRewardSettings) -> Path:
    """Return the output folder: an empty one, or an earlier training's with overwrite=true."""
    folder = Path(settings.output).expanduser()
    if folder.is_file():
        raise InputError(f"output={folder} is a file; expected a folder's name")
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if there and "results.json" not in there:
        raise InputError(f"output={folder} holds {there[0]!r} but no results.json; choose another folder")
    if there and not settings.overwrite:
        raise InputError(f"output={folder} holds a trained model; choose another output=, or overwrite=true")
    if Path(settings.model).expanduser().resolve().is_relative_to(folder.resolve()):
        raise InputError(f"output={folder} contains model={settings.model}; choose another output=")
    return folder


def _labels(
    settings: TrainRewardSettings, splits: Mapping[Split, RewardRows]
) -> tuple[dict[int | str, int], list[str]]:
    """Return the outputs' indices and names: one for each label, or a preference model's single output."""
    widths = {len(row.texts) for of_split in splits.values() for row in of_split.rows}
    if len(widths) > 1:
        raise InputError("data: some rows have a label, others are pairs; objective=labels or pairs chooses")
    if widths == {2}:
        return {}, ["reward"]
    places, names = label_places([row.label for row in splits["train"].rows], settings.data.label_names)
    for split, of_split in splits.items():
        for row in of_split.rows:
            if row.label not in places:
                raise InputError(
                    f"data.label: a {split} row has the label {row.label!r}, but the training rows have only "
                    f"{', '.join(map(str, places))}"
                )
    return places, names


def _prepared(
    settings: TrainRewardSettings,
    splits: Mapping[Split, RewardRows],
    places: Mapping[int | str, int],
    results: RewardResults,
    console: Progress,
) -> tuple["RewardModel", dict[Split, list["Example"]]]:
    """Load the model and encode every row; skip pairs with equal tokens."""
    from learner.reward_models.model import RewardModel  # imports torch: seconds
    from services.models.quiet import quiet_transformers

    quiet_transformers()
    model = RewardModel(whole_model(settings.model, where="model"), results.names, settings)
    examples: dict[Split, list[Example]] = {}
    for split, of_split in splits.items():
        examples[split], num_cut = _encoded(model, of_split.rows, places)
        num_same = len(of_split.rows) - len(examples[split])
        skipped = of_split.skipped + Counter({"the same to the model": num_same})
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
    """Return the encoded examples, and the number of texts that were cut."""
    from learner.reward_models.batches import Example

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
    """Train all epochs and save each new best one; then load the best model and measure it."""
    from learner.reward_models.training import RewardTrainer

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
            console.note(f"no better epoch for {settings.patience}: training ends here")
            break
    saved = results.load_kept(settings)  # measure the saved model, because that one is served
    for split in ("validation", "test"):
        results.measured[split] = results.measure(saved, examples[split], split, console)
