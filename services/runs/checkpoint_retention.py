"""Retention of a run's state: newest and best checkpoints, exported models, copies in the mirror."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.clients import LearnerClient
from contracts.errors import InputError
from services.runs import checkpoints
from services.runs.best import Best, Criterion, best_of
from services.runs.checksums import write_checksums
from services.runs.folder import RunFolder
from services.runs.json_lines import read_object, write_atomically
from services.runs.uploads import Uploads

TRAINED = "trained.json"  # file of an exported model: its iteration

log = logging.getLogger(__name__)


class Keeper:
    """Writer of a run's checkpoints and models; `uploads` copies them to the mirror."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        keep: int,
        keep_best: str | None,
        uploads: Uploads | None = None,
        note: Callable[[str], None] = log.warning,
    ) -> None:
        self._folder, self._keep, self._uploads, self._note = folder, keep, uploads, note
        self._criterion = Criterion.of(keep_best) if keep_best else None
        self._told: Best | None = None

    def save(self, learner: LearnerClient, iteration: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, and delete checkpoints that are neither new nor the best."""
        checkpoints.save(self._folder, iteration, learner.save, state)
        best = self._best_saved()
        if best is not None and best != self._told:
            self._tell(best)
        if self._uploads is not None:
            self._uploads.wait()  # a checkpoint must not be deleted while it is copied
        checkpoints.forget(self._folder, self._keep, spared=best.iteration if best else None)
        if self._uploads is not None:
            self._uploads.begin(iteration)

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Check that validation measures the metric of `keep_best`.

        Raises:
            InputError: validation does not measure the metric.
        """
        if self._criterion is not None:
            self._criterion.check(metrics)

    def is_best(self, iteration: int) -> bool:
        """Return whether the evaluation after this iteration is the best so far."""
        if self._criterion is None:
            return False
        best = best_of(self._criterion, self._folder.evaluations("validation"))
        return best is not None and best.iteration == iteration

    def export(self, learner: LearnerClient, iteration: int) -> None:
        """Export the current model and the best one. The learner ends with the state of the best model."""
        _export(learner, self._folder.model, iteration)
        evaluated = self._folder.evaluations("validation")
        if evaluated:  # a finished run may have been started again with another metric
            self.check(evaluated[-1]["metrics"])
        best = self._best_whole(iteration)
        if best is None:
            return
        ever = best_of(self._criterion, evaluated) if self._criterion else None
        if ever is not None and ever.value != best.value:
            self._note(f"iteration {ever.iteration} was better, but its checkpoint was deleted")
        if best.iteration != iteration:
            learner.load(str(self._folder.checkpoint(best.iteration)))
        _export(learner, self._folder.best_model, best.iteration)

    def _best_whole(self, iteration: int) -> Best | None:
        """Return the best undamaged checkpoint and write it to `best.json`. Set damaged ones aside."""
        while (best := self._best_saved()) is not None and best.iteration != iteration:
            path = self._folder.checkpoint(best.iteration)
            damage = checkpoints.damage(path)
            if not damage:
                break
            checkpoints.set_aside(path, damage, self._note)
        if best is not None and best != self._told:
            self._tell(best)
        return best

    def _best_saved(self) -> Best | None:
        if self._criterion is None:
            return None
        return best_of(
            self._criterion, self._folder.evaluations("validation"), among=self._folder.checkpoints()
        )

    def _tell(self, best: Best) -> None:
        assert self._criterion is not None
        record = {"iteration": best.iteration, **_named(self._criterion), "value": best.value}
        write_atomically(self._folder.best_file, json.dumps(record) + "\n")
        self._told = best


def trained_until(model: Path) -> int | None:
    """Return the iteration after which a run's model was exported; None if an older version exported it."""
    try:
        return int(json.loads((model / TRAINED).read_text())["iteration"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def is_exported(folder: RunFolder, iterations: int, keep_best: str | None) -> bool:
    """Return whether `model/` has at least so many iterations, and `best_model/` is the best by `keep_best`.

    A model of an older version, without its iteration, counts.
    """
    until = trained_until(folder.model)
    if not folder.model.exists() or (until is not None and until < iterations):
        return False
    if keep_best is None:
        return True
    try:
        record = read_object(folder.best_file)
    except InputError:
        return False
    is_same = _named(Criterion.of(keep_best)).items() <= record.items()
    best_until = trained_until(folder.best_model)
    return is_same and folder.best_model.exists() and best_until in (None, record.get("iteration"))


def _named(criterion: Criterion) -> dict[str, str]:
    """Return the criterion in the form of `best.json`."""
    return {"metric": f"val/{criterion.key}", "better": criterion.better}


def _export(learner: LearnerClient, place: Path, iteration: int) -> None:
    with checkpoints.appearing_whole(place) as unfinished:
        learner.export(str(unfinished))
        (unfinished / TRAINED).write_text(json.dumps({"iteration": iteration}) + "\n")
        write_checksums(unfinished)
