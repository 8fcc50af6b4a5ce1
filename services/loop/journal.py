"""Record a run: lines in its folder, metrics to the tracker, rows on the console."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.diagnosis.watch import Watch
from services.loop.evaluations.evaluation import Evaluation
from services.runs.folder import SHORT_SPLITS, RunFolder
from services.tracking.console import Console
from services.tracking.tracker import Tracker

SHOWN_SAMPLES = 20  # rows of an evaluation that go to the tracker's table


@dataclass(frozen=True, slots=True)
class Journal:
    """Recorder of iterations and evaluations in folder, tracker and console."""

    folder: RunFolder
    tracker: Tracker
    console: Console
    watch: Watch = field(default_factory=Watch)

    def iteration(self, number: int, info: Mapping[str, float], training: Mapping[str, float]) -> None:
        self.folder.append_rollout_info(number, info)
        self.folder.append_training_info(number, training)
        self.tracker.log_metrics({**info, **training}, number)
        self.console.iteration_done(number, {**info, **training})
        for warning in self.watch.warnings(number, {**info, **training}):
            self.console.warn(warning)

    def evaluation(self, iteration: int, split: str, found: Evaluation) -> None:
        short = SHORT_SPLITS.get(split, split)
        if split == "validation":
            self.watch.evaluated(iteration, found.metrics)
        self.folder.append_evaluation(iteration, split, found.metrics)
        self.folder.write_predictions(iteration, split, found.rows)
        self.console.evaluation_done(split, iteration, found.metrics, found.rows)
        metrics = {f"{short}/{key}": value for key, value in found.metrics.items()}
        self.tracker.log_metrics(metrics, iteration)
        self.tracker.log_samples(found.rows[:SHOWN_SAMPLES], iteration, short)

    def has_evaluation(self, iteration: int, split: str) -> bool:
        return any(row["epoch"] == iteration for row in self.folder.evaluations(split))
