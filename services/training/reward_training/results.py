"""Write the results of `whetstone train-reward`: epochs, best model, report, and a command to use it."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console as Terminal

from contracts.errors import InputError
from learner.reward_models.settings import RewardTraining
from reward_servers.models.intent import fault_of_labels
from services.runs.json_lines import without_nan, write_atomically
from services.runs.tracking.console import Console
from services.terminal.readable import duration, number

if TYPE_CHECKING:
    from learner.reward_models.batches import Example
    from learner.reward_models.model import RewardModel


class RewardResults:
    """Folder of one training: `model/`, `results.json`, `report.txt`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], names: Sequence[str]) -> None:
        self.folder, self.names, self.is_pairwise = folder, list(names), len(names) == 1
        self.epochs: list[dict[str, Any]] = []
        self.best_epoch = 0
        self.measured: dict[str, dict[str, Any]] = {}
        self._settings, self._counts = dict(settings), dict[str, dict[str, Any]]()

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def clear(self) -> None:
        """Make the folder, and remove an earlier training's files.

        Raises:
            InputError: the folder can't be made.
        """
        for name in ("model", "results.json", "report.txt"):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"output={self.folder} can't be made: {error.strerror}") from None

    def count(self, split: str, examples: int, num_cut: int, skipped: Mapping[str, int]) -> None:
        self._counts[split] = {"examples": examples, "cut": num_cut, "skipped": dict(skipped)}

    def say_what_is_trained(self, console: Console, model: "RewardModel") -> None:
        what = "a model of preferences" if self.is_pairwise else f"a classifier of {', '.join(self.names)}"
        rows = ", ".join(f"{counts['examples']} {split}" for split, counts in self._counts.items())
        pairs = "pairs" if self.is_pairwise else "texts"
        size = sum(parameter.numel() for parameter in model.lm.parameters())
        built = f"{model.lm.config.model_type}, {number(size)} parameters, on {model.device.type}"
        console.note(f"{what}: {built}; {pairs}: {rows}")
        if model.fresh:
            console.note(f"begins with random numbers: {', '.join(model.fresh)}")

    def say_what_was_left_out(self, console: Console, max_length: int) -> None:
        cut = sum(counts["cut"] for counts in self._counts.values())
        skipped: Counter[str] = sum((Counter(c["skipped"]) for c in self._counts.values()), Counter())
        if cut:
            console.note(f"{cut} texts have more than {max_length} tokens: only their end is kept")
        if skipped:
            reasons = ", ".join(f"{count} ({reason})" for reason, count in skipped.items())
            console.note(f"left out: {reasons}", "warning")

    def measure(
        self, model: "RewardModel", examples: Sequence["Example"], phase: str, console: Console
    ) -> dict[str, Any]:
        import torch

        from learner.reward_models.measures import label_measures, pair_measures

        console.phase(phase, len(examples))
        scores = model.scores(examples, lambda n: console.advance(phase, n))
        if self.is_pairwise:
            return pair_measures(scores)
        return label_measures(scores, torch.tensor([int(e.target) for e in examples]), self.names)

    def add_epoch(
        self, epoch: int, trained: Mapping[str, float], measured: Mapping[str, Any], best_by: str
    ) -> bool:
        """Add an epoch; return whether it is the best so far, by `best_by`."""
        rows = {row["epoch"]: row["validation"] for row in self.epochs}
        self.epochs.append({"epoch": epoch, "train": dict(trained), "validation": dict(measured)})
        best = rows.get(self.best_epoch)
        is_better = best is None or _rank(measured, best_by) > _rank(best, best_by)
        if is_better:
            self.best_epoch = epoch
        self._write(finished=False)
        return is_better

    def keep(self, model: "RewardModel") -> None:
        """Write the new model beside the old one and swap them, so that a whole model always exists."""
        fresh, old = self.folder / ".model.new", self.folder / ".model.old"
        for folder in (fresh, old):
            shutil.rmtree(folder, ignore_errors=True)
        model.save(fresh)
        if self.model.exists():
            os.rename(self.model, old)
        os.rename(fresh, self.model)
        shutil.rmtree(old, ignore_errors=True)

    def load_kept(self, settings: RewardTraining) -> "RewardModel":
        from learner.reward_models.model import RewardModel

        return RewardModel(str(self.model), self.names, settings)

    def when_interrupted(self) -> str:
        shutil.rmtree(self.folder / ".model.new", ignore_errors=True)
        if not self.model.exists():
            return "interrupted before the first epoch ended: nothing is kept"
        if not self.epochs:
            return f"interrupted before training began: the earlier model in {self.model} is unchanged"
        best = next(row for row in self.epochs if row["epoch"] == self.best_epoch)["validation"]
        return (
            f"interrupted after {len(self.epochs)} epochs: the best one so far, {self.best_epoch}, is in "
            f"{self.model} (validation accuracy {best['accuracy']:.3f}). "
            "The same command with overwrite=true starts again"
        )

    def finish(self, terminal: Terminal, join: str, took: str) -> None:
        """Write all results, and print the report and a command to use the model."""
        command = self.command(join)
        self._write(finished=True, command=command)
        report = report_of(self.measured, self.names, self.best_epoch, len(self.epochs))
        write_atomically(self.folder / "report.txt", report)
        outputs = "" if self.is_pairwise else " · ".join(f"{i} {name}" for i, name in enumerate(self.names))
        lines = [report, f"{self.folder}: model/, results.json, report.txt ({took})"]
        lines += [f"its labels: {outputs}"] if outputs else []
        lines += ["To train with it as the reward:", f"  {command}"] if command else [self._no_command()]
        if self.is_pairwise:
            raw = f"reward=learned_reward reward.model={self.model.resolve()} reward.output=logit"
            lines.append(f"That is between 0 and 1; the learned reward without bounds: {raw}")
        terminal.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True, emoji=False)

    def command(self, join: str) -> str | None:
        """Return the command that serves the model. A classifier serves its last label, usually the good one.

        Return None if the model reads the last utterance and its labels are not the four intents.
        """
        model = self.model.resolve()
        if self.is_pairwise:
            reward = f"reward=learned_reward reward.model={model}"
        elif join != "whole":
            if fault_of_labels(self.names):
                return None
            reward = f"reward=intent_accuracy reward.model={model} reward.join={join}"
        else:
            reward = f"reward=learned_reward reward.model={model} reward.label_ix={len(self.names) - 1}"
        return f"whetstone train model.path=MODEL task=TASK {reward}"

    def _no_command(self) -> str:
        return f"The reward intent_accuracy does not accept this model: it has {fault_of_labels(self.names)}"

    def _write(self, finished: bool, command: str | None = None) -> None:
        content = {
            "finished": finished,
            "objective": "pairs" if self.is_pairwise else "labels",
            "labels": self.names,
            "best_epoch": self.best_epoch,
            **self.measured,
            "rows": self._counts,
            "epochs": self.epochs,
            "command": command,
            "settings": self._settings,
        }
        text = json.dumps(without_nan(content), indent=1, ensure_ascii=False)
        write_atomically(self.folder / "results.json", text)


def epoch_line(
    epoch: int,
    epochs: int,
    trained: Mapping[str, float],
    measured: Mapping[str, Any],
    is_better: bool,
    took_s: float,
) -> str:
    left = f", {duration(took_s * (epochs - epoch))} left" if epoch < epochs else ""
    validation = f"accuracy {measured['accuracy']:.3f}  loss {measured['loss']:.4f}"
    best = "  (best)" if is_better else ""
    return (
        f"epoch {epoch}/{epochs}  loss {trained['loss']:.4f}  validation: {validation}{best}  "
        f"({duration(took_s)}{left})"
    )


def report_of(
    measured: Mapping[str, Mapping[str, Any]], names: Sequence[str], best_epoch: int, epochs: int
) -> str:
    """Return each split's classification report, or its metrics for pairs."""
    lines = [f"best epoch: {best_epoch} of {epochs}"]
    for split, measures in measured.items():
        if len(names) == 1:
            lines += ["", f"{split}: the chosen text is preferred in {measures['accuracy']:.1%} of pairs"]
            shown: tuple[str, ...] = (
                "loss",
                "margin",
                "ties",
                "reward_mean",
                "reward_std",
                "calibration_error",
            )
        else:
            lines += [
                "",
                f"{split}: accuracy {measures['accuracy']:.3f} ({measures['majority']:.3f} by always saying "
                "the commonest label)",
            ]
            lines += _label_table(measures["labels"])
            shown = ("macro_f1", "loss", "calibration_error")
        lines.append("  ".join(f"{key.replace('_', ' ')} {number(measures[key])}" for key in shown))
    return "\n".join(lines) + "\n"


def _label_table(labels: Mapping[str, Mapping[str, float]]) -> list[str]:
    width = max(len(name) for name in (*labels, "label"))
    lines = [f"{'label':<{width}}  precision  recall     F1  texts"]
    for name, row in labels.items():
        figures = f"{row['precision']:9.3f} {row['recall']:7.3f} {row['f1']:6.3f} {row['support']:6d}"
        lines.append(f"{name:<{width}}  {figures}")
    return lines


def _rank(measured: Mapping[str, Any], best_by: str) -> tuple[float, ...]:
    if best_by == "loss":
        return (-measured["loss"],)
    return (measured["accuracy"], -measured["loss"])
