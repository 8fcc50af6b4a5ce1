"""A run's folder: its file names, its claim, and writes that keep it readable after a crash.

    <output_dir>/<run_name>/
        config.yaml                                 the resolved configuration
        rollout_info.jsonl  training_info.jsonl     {"iteration": n, "reward/mean": …}, a line per iteration
        val_split_metrics.jsonl  test_…             {"epoch": n, "metrics": {…}}, a line per evaluation
        epoch_<n>_<split>_split_predictions.json    a list with a row for each prompt
        checkpoints/<iteration>/                    a bare number once complete, another name before
        checkpoints/best.json                       the best checkpoint, if keep_best is set
        model/  best_model/  report.html  diagnosis.html  learning_curves.png  log.txt  provenance.json
        tokens/<iteration>.jsonl                    some episodes with numbers of their tokens
        episodes.jsonl                              some new episodes, for `whetstone watch`
        stopped.json                                the rule that stopped the run, if any
        timeline.json                               with --timeline
        functions/                                  reward functions from a script or notebook
        data/<split>/                               results that a run computes from rows at its start

Iterations count from 1; epoch n of an evaluation is the number of iterations before it, so 0 is the
untrained model.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from contracts.errors import InputError
from contracts.secrets.redaction import without_secrets
from services.runs import claim as run_claim
from services.runs.json_lines import (
    BadLine,
    Needs,
    append_row,
    damaged_name,
    read_json,
    read_rows,
    sift,
    to_line,
    told,
    without_nan,
    write_atomically,
)
from services.terminal.visible import is_one_line

log = logging.getLogger(__name__)

INFO_FILES = ("rollout_info.jsonl", "training_info.jsonl")
SPLITS = ("val", "test")
Completed = Callable[[Mapping[str, Any]], Mapping[str, Any]]
SHORT_SPLITS = {"validation": "val"}  # file names have val


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run: `open` it to write, or construct it from a path to read.

    Example: `RunFolder(Path("runs/numbers")).rollout_info()[-1]["reward/mean"]`
    """

    path: Path

    @classmethod
    def open(
        cls,
        output_dir: str | os.PathLike[str],
        run_name: str,
        config: Mapping[str, Any],
        resume: Literal["auto", "never"],
        *,
        only_look: bool = False,
        completed: Completed = dict,
    ) -> "RunFolder":
        """Make the folder, or open the existing one of the same run; `config` becomes its config.yaml.

        Args:
            completed: adds newer options to the configuration in the folder.
            only_look: make, write and lock nothing; a run may be running there.

        Raises:
            InputError: the name is not a folder name; the place can't be written; the folder belongs to
                something else, to a run with another configuration, or to a run in another process;
                or it holds results and `resume` is "never". The folder stays unchanged.
        """
        if Path(run_name).name != run_name or run_name in ("", "..") or not is_one_line(run_name):
            raise InputError(
                f"run_name={run_name!r}: expected a single folder name, without slashes "
                "and control characters"
            )
        folder = cls(Path(output_dir).absolute() / run_name)
        wanted = without_secrets(run_claim.plain(config))
        run_claim.refuse_strangers(folder.path)
        if folder.config_file.exists():
            run_claim.refuse_other_config(folder.path, completed(folder.config()), wanted)
            if resume == "never" and folder.has_results():
                raise InputError(
                    f"{folder.path} already holds this run's results, but resume=never is set. "
                    f"Choose another run_name=, or resume=auto to continue it."
                )
        if only_look:
            run_claim.expect_writable(folder.path)
            return folder
        run_claim.make_writable(folder.path)
        run_claim.lock(folder.path)
        write_atomically(folder.config_file, yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True))
        return folder

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def best_model(self) -> Path:
        return self.path / "best_model"

    @property
    def best_file(self) -> Path:
        return self.path / "checkpoints" / "best.json"

    @property
    def stopped(self) -> Path:
        return self.path / "stopped.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def diagnosis(self) -> Path:
        return self.path / "diagnosis.html"

    @property
    def curves(self) -> Path:
        return self.path / "learning_curves.png"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes.jsonl"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def functions(self) -> Path:
        return self.path / "functions"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers.json"

    @property
    def provenance(self) -> Path:
        return self.path / "provenance.json"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.json"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def checkpoint(self, iteration: int) -> Path:
        """Return the path of the checkpoint after `iteration` iterations, whether or not it exists."""
        return self.path / "checkpoints" / str(iteration)

    def checkpoints(self) -> dict[int, Path]:
        """Return the complete checkpoints, oldest first. The names of incomplete ones are not numbers."""
        paths = (self.path / "checkpoints").glob("*")
        return dict(sorted((int(path.name), path) for path in paths if path.name.isdecimal()))

    def has_results(self) -> bool:
        """Return whether an iteration, an evaluation or a checkpoint was written."""
        return bool(self.checkpoints()) or any(
            file.exists() and file.stat().st_size > 0 for file in self.jsonl_files()
        )

    # Writing

    def append_rollout_info(self, iteration: int, values: Mapping[str, Any]) -> None:
        self._append(INFO_FILES[0], {"iteration": iteration, **values})

    def append_training_info(self, iteration: int, values: Mapping[str, Any]) -> None:
        self._append(INFO_FILES[1], {"iteration": iteration, **values})

    def append_evaluation(self, epoch: int, split: str, metrics: Mapping[str, Any]) -> None:
        self._append(_metrics_file(split), {"epoch": epoch, "metrics": dict(metrics)})

    def write_predictions(self, epoch: int, split: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write a row for each generated text, with RL4LMs' keys, for the report.

        Example of a row: `{"split_name": "val", "sample_id": "imdb/validation/3", "prompt_text": "…",
        "prompt_as_read": "…", "generated_text": "…", "ref_text": "…", "reward": 0.61,
        "lexical/rouge_rouge1": 0.2}`
        """
        text = json.dumps(without_nan(list(rows)), indent=1, ensure_ascii=False, allow_nan=False)
        return write_atomically(self.predictions_file(epoch, split), text)

    def truncate_after(self, iteration: int) -> None:
        """Delete the lines after `iteration`, so that a run resumed there has each iteration once.

        A start without a checkpoint calls `truncate_after(-1)`, which also deletes the evaluation at 0. A
        line that a crash cut short is deleted, too. A file that loses a line for good is copied first. Each
        file is replaced in one step.
        """
        for file in self.jsonl_files():
            if file.exists():
                needs = needs_of(file.name)
                rows, bad = sift(file, needs)
                moment = next(iter(needs))
                kept = [row for row in rows if row[moment] <= iteration]
                if bad := [*bad, *_lost_line(file, moment, kept, iteration)]:
                    _keep(file, bad)
                write_atomically(file, "".join(map(to_line, kept)))
        for split in SPLITS:
            for epoch in self.prediction_epochs(split):
                if epoch > iteration:
                    self.predictions_file(epoch, split).unlink()
        for file in self.tokens.glob("*.jsonl"):
            if file.stem.isdecimal() and int(file.stem) > iteration:
                file.unlink()

    # Reading

    def config(self) -> dict[str, Any]:
        """Read the configuration in config.yaml.

        Raises:
            InputError: the file is missing, or is not YAML with keys.
        """
        try:
            config = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{self.path} is not a run's folder, because it has no config.yaml") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"{self.config_file} can't be read: {error}") from None
        if not isinstance(config, dict):
            raise InputError(f"{self.config_file}: expected keys and values, got {type(config).__name__}")
        return config

    def rollout_info(self) -> list[dict[str, Any]]:
        return self._rows(INFO_FILES[0])

    def training_info(self) -> list[dict[str, Any]]:
        return self._rows(INFO_FILES[1])

    def evaluations(self, split: str) -> list[dict[str, Any]]:
        """Return rows `{"epoch": n, "metrics": {…}}`, oldest first; the later line of a repeated epoch."""
        by_epoch = {row["epoch"]: row for row in self._rows(_metrics_file(split))}
        return [by_epoch[epoch] for epoch in sorted(by_epoch)]

    def prediction_epochs(self, split: str) -> list[int]:
        """Return the epochs that have a predictions file, in order."""
        before, after = self.predictions_file(0, split).name.split("0", maxsplit=1)
        names = [path.name for path in self.path.glob(f"{before}*{after}")]
        epochs = [name.removeprefix(before).removesuffix(after) for name in names]
        return sorted(int(epoch) for epoch in epochs if epoch.isdecimal())

    def predictions(self, epoch: int, split: str) -> list[dict[str, Any]]:
        """Return the predictions of one evaluation.

        Raises:
            InputError: the file is missing or damaged.
        """
        file = self.predictions_file(epoch, split)
        rows = read_json(file)
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise InputError(f"{file} is damaged: expected a list of objects")
        return rows

    def whole_predictions(self, epoch: int, split: str) -> list[dict[str, Any]]:
        """Return `predictions`; if their file is damaged, warn and return []."""
        try:
            return self.predictions(epoch, split)
        except InputError as error:
            log.warning("%s. The report shows no texts of this evaluation", error)
            return []

    def lines_so_far(self) -> dict[str, bytes]:
        """Return the content of the info files, the evaluations and the configuration, by file name."""
        files = [self.config_file, *self.jsonl_files()]
        return {file.name: file.read_bytes() for file in files if file.exists()}

    # Inside

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return read_rows(self.path / name, needs_of(name))

    def jsonl_files(self) -> list[Path]:
        """Return the paths of the JSON Lines files, whether or not they exist."""
        return [self.path / name for name in (*INFO_FILES, *map(_metrics_file, SPLITS))]

    def predictions_file(self, epoch: int, split: str) -> Path:
        """Return the path of one evaluation's predictions."""
        return self.path / f"epoch_{epoch}_{SHORT_SPLITS.get(split, split)}_split_predictions.json"

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        append_row(self.path / name, row)


def is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file()


def _metrics_file(split: str) -> str:
    return f"{SHORT_SPLITS.get(split, split)}_split_metrics.jsonl"


def _lost_line(file: Path, moment: str, kept: Sequence[Mapping[str, Any]], iteration: int) -> list[BadLine]:
    """Return the last line if it is cut short and a run resumed at `iteration` will not rewrite it."""
    whole, _, last = file.read_bytes().rpartition(b"\n")
    if not last or iteration < 1:
        return []
    there = {row[moment] for row in kept}
    if moment == "iteration":
        is_lost = iteration not in there
    else:  # a resumed run repeats only the evaluation at `iteration`
        match = re.match(rb'\{"epoch": (\d+)\D', last)
        is_lost = match is None or (int(match[1]) in range(iteration) and int(match[1]) not in there)
    return [BadLine(whole.count(b"\n") + 1 + bool(whole), "it was cut short")] * is_lost


def _keep(file: Path, bad: Sequence[BadLine]) -> None:
    copy = damaged_name(file)
    shutil.copy2(file, copy)
    log.warning(
        "%s is damaged, and the run continues without these lines: %s. The damaged file is kept as %s",
        *(file, told(bad), copy.name),
    )


def needs_of(name: str) -> Needs:
    """Return the keys of each line of a file, and their types: iteration or epoch first."""
    return {"iteration": int} if name in INFO_FILES else {"epoch": int, "metrics": dict}
