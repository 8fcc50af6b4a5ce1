"""The training loop.

    ┌─▶ the next batch ─▶ learner.update ─▶ push the weights to the workers ─▶ log ─┐
    └──────────────────────────────── evaluate, save ◀──────────────────────────────┘

`batches.py` makes the batches; `services/training/train/loop.py` assembles the loop. The loop knows
neither Ray nor torch: it calls the interfaces in `contracts.clients`.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal

from contracts.clients import FleetClient, LearnerClient, RewardClient
from contracts.errors import LearnerLost, RunError
from contracts.processes import timeline
from learner.optimization.rate_schedule import moved
from learner.settings import LearnerSettings
from services.config.evaluation_settings import NEVER
from services.data.tasks.base import HELD_OUT
from services.runs import checkpoints
from services.runs.checkpoint_retention import Keeper
from services.runs.stopping.stopping import StoppedBy
from services.terminal.interrupts import Interrupted
from services.training.loop.batches import BatchSource
from services.training.loop.collecting import FailureBudget
from services.training.loop.evaluations.evaluator import Evaluator
from services.training.loop.journal import Journal
from services.training.loop.learner_restarts import LearnerRestarts
from services.training.loop.requests import RunRequests
from services.training.loop.statistics.iteration_info import Iteration, IterationInfo
from services.training.loop.update_bar import UpdateBar
from services.training.loop.worker_weights import WorkerWeights


@dataclass(frozen=True, slots=True)
class Clients:
    workers: FleetClient
    rewards: RewardClient
    learner: LearnerClient
    scores_early: bool = False  # whether the learner scores finished rollouts while others are written


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Length of the loop, and the intervals at which it evaluates and saves."""

    run_name: str
    iterations: int
    evaluate_every: int | Literal["never"]  # iterations; 0: only before the first and after the last
    save_every: int  # iterations; 0: only after the last
    learner: LearnerSettings  # its schedule of the learning rate, and how often it may restart


@dataclass(frozen=True, slots=True)
class LoopParts:
    """Objects that the loop works with."""

    clients: Clients
    source: BatchSource
    weights: WorkerWeights
    evaluator: Evaluator
    info: IterationInfo
    journal: Journal
    keeper: Keeper
    failures: FailureBudget
    requests: RunRequests


class Controller:
    """Training loop. It runs iterations, and alone writes to the run's folder."""

    def __init__(self, settings: LoopSettings, parts: LoopParts) -> None:
        self._settings = settings
        self._learner, self._workers = parts.clients.learner, parts.clients.workers
        self._source, self._weights, self._evaluator = parts.source, parts.weights, parts.evaluator
        self._info, self._journal, self._keeper = parts.info, parts.journal, parts.keeper
        self._failures, self._requests = parts.failures, parts.requests
        self._folder, self._console = parts.journal.folder, parts.journal.console
        self._iteration = 0
        self._boundary: dict[str, Any] = {}  # state at the end of the last iteration
        self._saved_at = -1
        self._lost: LearnerLost | None = None  # why the learner was lost, until it is replaced
        self._stopped_by: StoppedBy | None = None  # rule that ended the run early
        self._restarts = LearnerRestarts(settings.learner.max_restarts)
        self._start = self._source.state()

    def run(self) -> None:
        """Run the remaining iterations, until a rule stops the run.

        Raises:
            Interrupted: a stop was requested; everything up to the last whole iteration is saved.
            RunError: the learner was lost while it saved after a stop, or can't be replaced.
        """
        try:
            self._resume()
        except LearnerLost as error:
            self._lost = error
        self._console.start(self._settings.run_name, self._settings.iterations, self._iteration + 1)
        try:
            while not self._finish():
                pass
        except Interrupted:
            self._console.note("stopping: saving the last whole iteration", "warning")
            try:
                self._save()
            except LearnerLost as error:
                raise RunError(
                    f"{error}. The last checkpoint was not saved, so iterations after checkpoint "
                    f"{self._saved_at} are lost; the same command continues from there"
                ) from None
            raise

    def _finish(self) -> bool:
        """Run to the end. Return False if the learner was lost and must be replaced."""
        try:
            if self._lost is not None:
                self._recover(self._lost)
            with self._console.doing("giving the workers the learner's weights"):
                self._weights.push()
            self._do_what_is_due()
            while self._iteration < self._settings.iterations and not self._stops():
                with timeline.span(f"iteration {self._iteration + 1}"):
                    self.iterate()
                self._do_what_is_due()
            self._save()
            with timeline.span("exports the model"):
                self._keeper.export(self._learner, self._iteration)
            if self._stopped_by is not None:
                self._journal.stopped(self._stopped_by)
        except LearnerLost as error:
            self._lost = error
            return False
        return True

    def iterate(self) -> None:
        """Run one iteration: the next batch, update, push, log."""
        started = time.perf_counter()
        self._requests.look()
        with timeline.span("waits for rollouts and rewards"):
            batch = self._source.next(self._iteration)
        self._weights.make_room()
        with timeline.span("waits for the update"):
            trained = self._learner.update(batch.batch, UpdateBar(self._console, self._attend))
        with timeline.span("pushes weights"):
            pushed = self._weights.push()
        self._iteration += 1
        self._source.prepare(self._iteration)
        self._remember()
        seconds = time.perf_counter() - started
        described = self._source.describe(batch, seconds)
        info, training = self._info(Iteration(batch, trained, pushed, described, seconds))
        with timeline.span("records"):
            self._journal.episodes(self._iteration, batch.rollouts, self._learner.token_numbers)
            self._journal.iteration(self._iteration, info, training)

    def _attend(self) -> None:
        """Take care of rollouts and requests while the learner trains; a stop waits until the update ends."""
        self._requests.scaling.look()
        self._source.attend()

    # ---- between two iterations ----

    def _stops(self) -> bool:
        """Tell whether a rule stops the run. If so, report it and evaluate as after the last iteration."""
        self._stopped_by = self._journal.stopped_by()
        if self._stopped_by is None:
            return False
        self._console.note(f"iteration {self._iteration} is the last: {self._stopped_by}", "warning")
        self._do_what_is_due()
        return True

    def _do_what_is_due(self) -> None:
        """Evaluate and save if due; called between iterations and after a resume."""
        due = [s for s in self._due_splits() if not self._journal.has_evaluation(self._iteration, s)]
        if due:
            self._weights.push_for_evaluation()
        for split in due:
            with timeline.span(f"evaluates {split}"):
                self._evaluate(split)
        every, iteration = self._settings.save_every, self._iteration
        if iteration and ((every and iteration % every == 0) or self._keeper.is_best(iteration)):
            self._save()

    def _due_splits(self) -> tuple[str, ...]:
        every, iteration = self._settings.evaluate_every, self._iteration
        if every == NEVER:
            return ()
        if iteration in (0, self._settings.iterations) or self._stopped_by is not None:
            return HELD_OUT
        return ("validation",) if every and iteration % every == 0 else ()

    def _evaluate(self, split: str) -> None:
        is_untrained = self._iteration == 0
        evaluation = self._evaluator(split, is_untrained=is_untrained)
        if split == "validation":
            self._keeper.check(evaluation.metrics)
        if is_untrained:
            evaluation.metrics.update(self._evaluator.baselines(split))
        self._journal.evaluation(self._iteration, split, evaluation)

    # ---- saving and resuming ----

    def _remember(self) -> None:
        self._boundary = {
            "iteration": self._iteration,
            "iterations": self._settings.iterations,
            "source": self._source.state(),
            "reward_failures": self._failures.num_unscored,
            "environment_failures": self._failures.num_unplayed,
        }

    def _save(self) -> None:
        if self._saved_at == self._iteration:
            return
        state = self._boundary | {"tracking_run_id": self._journal.tracker.run_id}
        with timeline.span("saves a checkpoint"):
            self._keeper.save(self._learner, self._iteration, state)
        self._saved_at = self._iteration

    def _resume(self) -> None:
        self._stopped_by = None
        newest = checkpoints.newest_whole(self._folder, self._console.warn)
        if newest is None:
            self._begin()
            return
        self._iteration, path = newest
        state = checkpoints.read_state(path)
        self._learner.load(str(path))
        self._source.restore(state["source"])
        self._failures.num_unscored = state["reward_failures"]
        self._failures.num_unplayed = state.get("environment_failures", 0)  # older: one count
        self._folder.truncate_after(self._iteration)
        self._saved_at = self._iteration
        self._remember()
        self._journal.resume()
        self._console.note(f"resumed from {path}")
        length, planned = self._settings.iterations, state.get("iterations")  # missing in older states
        if planned and (warning := moved(self._settings.learner, self._iteration + 1, planned, length)):
            self._console.note(warning, "warning")

    def _begin(self) -> None:
        self._iteration, self._saved_at = 0, -1
        self._failures.num_unscored = self._failures.num_unplayed = 0
        self._source.restore(self._start)
        self._folder.truncate_after(-1)
        self._remember()
        self._journal.resume()

    def _recover(self, lost: LearnerLost) -> None:
        """Replace a lost learner, and go back to the newest checkpoint.

        Raises:
            RunError: too many learners were lost, or the next learner would fail, too.
            LearnerLost: the replacement was lost, too.
            Interrupted: a stop was requested meanwhile.
        """
        restarted = self._restarts.spend(lost, self._iteration + 1)
        self._console.note(f"{lost}; {restarted} starts", "warning")
        self._saved_at = self._iteration  # nothing to save if a stop comes now
        self._workers.cancel_all()
        self._learner.restart(lambda *_: self._requests.look())
        self._resume()
        self._lost = None
