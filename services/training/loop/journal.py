"""Record a run in its folder, in the tracker and on the console, and apply rules to the records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.clients import TokenNumbers
from contracts.rollout import Rollout
from services.runs.diagnosis.reading import history_of
from services.runs.diagnosis.watch import Watch
from services.runs.folder import SHORT_SPLITS, RunFolder
from services.runs.stopping.stopping import StoppedBy, Stopping
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.training.loop.evaluations.evaluation import Evaluation
from services.training.loop.seen_tokens import SeenTokens

STOPPED_BY = "stopped_by"  # tag in MLflow
SHOWN_SAMPLES = 20  # rows of an evaluation in the tracker's table


@dataclass(frozen=True, slots=True)
class Journal:
    """Recorder of iterations and evaluations in folder, tracker and console."""

    folder: RunFolder
    tracker: Tracker
    console: Console
    watch: Watch = field(default_factory=Watch)
    stopping: Stopping = field(default_factory=Stopping)
    seen_tokens: SeenTokens | None = None  # None: the policy writes no texts in training

    def resume(self) -> None:
        """Read the folder's records at the start of a run and when it resumes.

        Raises:
            InputError: no evaluation has the metric of a stop rule.
        """
        history = history_of(self.folder)
        self.watch.resume(history)
        for warning in self.stopping.resume(history):
            self.console.warn(warning)
        if self.folder.stopped.exists():
            self.folder.stopped.unlink()
            self.tracker.log_tags({STOPPED_BY: ""})

    def stopped_by(self) -> StoppedBy | None:
        """Return the rule that stops the run now; None if no rule does."""
        return self.stopping.stopped_by(self.watch.finding)

    def stopped(self, by: StoppedBy) -> None:
        """Record that a rule has stopped the run."""
        by.write(self.folder)
        self.tracker.log_tags({STOPPED_BY: str(by)})

    def episodes(
        self, number: int, rollouts: Sequence[Rollout], numbers: Callable[[], Sequence[TokenNumbers]]
    ) -> None:
        """Write some of an iteration's episodes, with the learner's numbers of their tokens."""
        if self.seen_tokens is not None:
            failure = self.seen_tokens.add(number, rollouts, numbers())
            if failure is not None:
                self.console.warn(f"tokens/ gets no more files, watch --web no more episodes: {failure}")

    def iteration(self, number: int, info: Mapping[str, float], training: Mapping[str, float]) -> None:
        self.folder.append_rollout_info(number, info)
        self.folder.append_training_info(number, training)
        self.tracker.log_metrics({**info, **training}, number)
        self.console.iteration_done(number, {**info, **training})
        warnings = self.watch.warnings(number, {**info, **training})
        for warning in (*warnings, *self.stopping.iteration(number, {**info, **training})):
            self.console.warn(warning)

    def evaluation(self, iteration: int, split: str, evaluation: Evaluation) -> None:
        short = SHORT_SPLITS.get(split, split)
        if split == "validation":
            self.watch.evaluated(iteration, evaluation.metrics)
            self.stopping.evaluation(iteration, evaluation.metrics)
        self.folder.append_evaluation(iteration, split, evaluation.metrics)
        self.folder.write_predictions(iteration, split, evaluation.rows)
        self.console.evaluation_done(split, iteration, evaluation.metrics, evaluation.rows)
        metrics = {f"{short}/{key}": value for key, value in evaluation.metrics.items()}
        self.tracker.log_metrics(metrics, iteration)
        self.tracker.log_samples(evaluation.rows[:SHOWN_SAMPLES], iteration, short)

    def has_evaluation(self, iteration: int, split: str) -> bool:
        return any(row["epoch"] == iteration for row in self.folder.evaluations(split))
