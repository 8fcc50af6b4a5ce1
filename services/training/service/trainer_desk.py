"""Run the journal's calls with a trainer, one after another; restore the models of a new trainer.

    journal: next call ─▶ is the model held? no: its snapshot, then the calls that changed it since
                       ─▶ trainer ─▶ journal: answer, perhaps a snapshot ─▶ the waiting client

A snapshot is written after a step, when no gradients exist, and only if the work since the last snapshot
took ten times as long as writing one. So snapshots cost at most a tenth of the time, and a new trainer
repeats little.
"""

import logging
import shutil
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError, RunError
from services.training.service.child import Child, ChildGivenUp, ChildLost
from services.training.service.journal import Call, Journal, failure
from services.training.service.presence import Presence
from services.training.service.training_calls import Outcome, TrainingCalls
from services.training.service.waiters import Waiters

WORTH = 10.0  # seconds of work for each second of a snapshot
MOST_LOSSES = 2  # lost trainers during one call
LOOK_S = 0.5
GONE = (
    "model {model} is lost: its trainer ended, and call {call} ({kind}) can't be repeated: {error}. Expected "
    "a new model, from a checkpoint that still exists"
)
LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Cost:
    """Seconds of a model's work since its last snapshot, and of writing that snapshot."""

    work_s: float = 0.0
    snapshot_s: float = 0.0


class TrainerDesk(threading.Thread):
    """Thread that runs calls.

    Example: `TrainerDesk(journal, child, calls, waiters, Path("state"), Presence()).start()`
    """

    def __init__(
        self,
        journal: Journal,
        trainer: Child,
        calls: TrainingCalls,
        waiters: Waiters,
        folder: Path,
        presence: Presence,
    ) -> None:
        super().__init__(name="trainer desk", daemon=True)
        self._journal, self._trainer, self._calls = journal, trainer, calls
        self._waiters, self._folder, self._presence = waiters, folder, presence
        self._held: set[str] = set()  # models that the trainer holds, as in the journal
        self._costs: dict[str, Cost] = defaultdict(Cost)
        self._start_of_held = 0
        self._losses: Counter[str] = Counter()
        self._news, self._ends = threading.Event(), threading.Event()
        self.broken: str | None = None  # why no more calls run

    def notify(self) -> None:
        """Wake the thread for a new call."""
        self._news.set()

    def stop(self) -> None:
        self._ends.set()
        self._news.set()

    def run(self) -> None:
        while not self._ends.is_set():
            call = self._journal.next_call()
            if call is None:
                self._news.wait(LOOK_S)
                self._news.clear()
                continue
            try:
                self._serve(call)
            except Exception as error:  # for example, a full disk; callers must get the error
                LOG.exception("the trainer's desk stopped")
                self.broken = f"{type(error).__name__}: {error}"
                return

    def _serve(self, call: Call) -> None:
        began = time.monotonic()
        try:
            outcome = self._perform(call)
        except InputError as error:
            outcome = Outcome(failure(str(error), "user"))
        except ChildLost as error:
            self._losses[call.id] += 1
            LOG.warning("%s during %s; its calls are repeated", error, call.id)
            if self._losses[call.id] < MOST_LOSSES:
                return
            outcome = Outcome(failure(f"{error}, twice during this call; it is given up", "server"))
        except ChildGivenUp:
            raise  # the call waits in the journal for the next server
        except RunError as error:
            self._held.discard(call.model)  # the call may be half done, so restore the model
            outcome = Outcome(failure(str(error), "server"))
        self._costs[call.model].work_s += time.monotonic() - began
        old = self._finish(call, outcome)
        self._waiters.wake(call.id)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    def _perform(self, call: Call) -> Outcome:
        self._bring_back(call.model)
        return self._calls.perform(call)

    def _finish(self, call: Call, outcome: Outcome) -> Path | None:
        """Record the outcome; return the folder of a snapshot that is no longer needed."""
        snapshot = self._snapshot(call) if self._is_worth_it(call, outcome) else None
        before = self._journal.row("SELECT snapshot FROM models WHERE id = ?", call.model)
        with self._journal.transaction():
            for note in outcome.notes:
                note()
            self._journal.finish(call, outcome.answer, moves=outcome.moves)
            if snapshot is not None:
                self._journal.cover(call.model, call.seq, snapshot)
        if snapshot is None or before is None or before["snapshot"] in (None, str(snapshot)):
            return None
        return Path(before["snapshot"])

    def _is_worth_it(self, call: Call, outcome: Outcome) -> bool:
        if outcome.must_snapshot:
            return True
        cost = self._costs[call.model]
        return outcome.may_snapshot and cost.work_s >= WORTH * cost.snapshot_s

    def _snapshot(self, call: Call) -> Path | None:
        """Save the model after a call; None if the trainer died, because the journal has all calls."""
        began = time.monotonic()
        folder = self._folder / call.model.replace(":", "-") / f"{call.seq:09d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            self._trainer.call("save", call.model, folder)
        except RunError as error:
            LOG.warning("no snapshot of %s: %s", call.model, error)
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._costs[call.model] = Cost(snapshot_s=time.monotonic() - began)
        return folder

    def _bring_back(self, model: str) -> None:
        """Restore the model in the trainer to its state before the next call.

        Raises:
            InputError: the model could not be created, or a file that a call read was deleted since.
        """
        self._trainer.start()
        if self._start_of_held != self._trainer.num_starts:
            self._held.clear()
            self._start_of_held = self._trainer.num_starts
        if model in self._held:
            return
        row = self._journal.row("SELECT * FROM models WHERE id = ?", model)
        assert row is not None, "a call is of a model that is there"
        self._forget_away()
        self._calls.create(dict(row))
        for earlier in self._journal.moved_since(model, row["covered"]):
            try:
                self._calls.perform(earlier)
            except InputError as error:  # the call was valid at first
                raise InputError(
                    GONE.format(model=model, call=earlier.seq, kind=earlier.kind, error=error)
                ) from None
        self._held.add(model)

    def _forget_away(self) -> None:
        """Free the models of sessions that are away. The journal restores a model if its client returns."""
        for model in sorted(self._held):
            if self._presence.is_away(model.partition(":")[0]):
                self._trainer.call("forget", model)
                self._held.discard(model)
