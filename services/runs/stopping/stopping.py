"""A run's stop rules during the run. They record its numbers, and say when it should stop.

    iteration, evaluation ─▶ each rule's Progress ─▶ StoppedBy: rule, iteration, words
    the run's files, after a resume ─┘

As for `keep_best`, the untrained model's evaluation does not count.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contracts.errors import InputError, did_you_mean
from services.runs.best import SPLIT
from services.runs.diagnosis.history import History
from services.runs.diagnosis.rule import Evidence
from services.runs.folder import RunFolder
from services.runs.json_lines import read_object, write_atomically
from services.runs.stopping.rules import Diagnosed, Progress, StopRule, parse


@dataclass(frozen=True, slots=True)
class StoppedBy:
    """A rule that stopped a run.

    Example: `StoppedBy("entropy<0.05", 30, "entropy is 0.031 after iteration 30")`
    """

    rule: str
    iteration: int
    words: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.words})"

    @classmethod
    def read(cls, folder: RunFolder) -> "StoppedBy | None":
        """Return the rule that stopped the run in a folder; None if none did, or its file can't be read."""
        try:
            record = read_object(folder.stopped)
            return cls(str(record["rule"]), int(record["iteration"]), str(record["words"]))
        except (InputError, LookupError, ValueError, TypeError):
            return None

    def write(self, folder: RunFolder) -> None:
        write_atomically(folder.stopped, json.dumps(asdict(self)) + "\n")


class Stopping:
    """The stop rules of a run, with their state.

    Example:

        >>> stopping = Stopping(["entropy<0.05", "val/reward/mean no better for 1"])
        >>> stopping.iteration(1, {"entropy": 0.2})
        []
        >>> stopping.evaluation(1, {"reward/mean": 0.5}), stopping.evaluation(2, {"reward/mean": 0.4})
        (None, None)
        >>> stopping.stopped_by(lambda name: None).words
        'val/reward/mean was best after iteration 1 (0.5), and no better for 1 evaluation'
    """

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._rules: tuple[StopRule, ...] = tuple(map(parse, texts))
        self._restart()

    def _restart(self) -> None:
        self._progress = {rule.text: Progress() for rule in self._rules}
        self._now = 0
        self._is_checked = False

    def resume(self, history: History) -> list[str]:
        """Reset the state, and read the run's numbers so far; return warnings.

        Raises:
            InputError: as in `evaluation`.
        """
        self._restart()
        warnings = [warning for row in history.rows for warning in self.iteration(int(row["iteration"]), row)]
        for row in history.evaluations:
            self._take(int(row["epoch"]), row["metrics"], SPLIT)
        if history.evaluations:
            self._check(history.evaluations[-1]["metrics"])
        return warnings

    def iteration(self, number: int, metrics: Mapping[str, Any]) -> list[str]:
        """Record an iteration; return a warning for each metric that the first iteration lacks."""
        self._now = number
        self._take(number, metrics, "")
        if self._is_checked:
            return []
        self._is_checked = True
        return [
            f"stop_when={rule.text!r} waits for {key!r}, which iteration {number} does not have"
            f"{did_you_mean(key, metrics)}"
            for rule, key in self._reading("")
            if key not in metrics
        ]

    def evaluation(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Record an evaluation of the validation split.

        Raises:
            InputError: the first evaluation lacks a rule's metric.
        """
        if iteration == 0:
            self._check(metrics)
        self._take(iteration, metrics, SPLIT)

    def stopped_by(self, finding: Callable[[str], Evidence | None]) -> StoppedBy | None:
        """Return the first rule that stops the run now.

        Args:
            finding: returns the evidence of a diagnosis by its name; None: it does not fire.
        """
        for rule in self._rules:
            if isinstance(rule, Diagnosed):
                if self._now and (evidence := finding(rule.name)):
                    return StoppedBy(rule.text, self._now, evidence.said)
            elif (seen := self._progress[rule.text]).count >= rule.times:
                return StoppedBy(rule.text, self._now, rule.words(seen))
        return None

    def _take(self, at: int, metrics: Mapping[str, Any], split: str) -> None:
        if at == 0:
            return
        for rule, key in self._reading(split):
            if key in metrics:
                seen = self._progress[rule.text]
                self._progress[rule.text] = rule.after(seen, at, _finite(metrics[key]))

    def _check(self, metrics: Mapping[str, Any]) -> None:
        for rule, key in self._reading(SPLIT):
            if key not in metrics:
                raise InputError(
                    f"stop_when={rule.text!r}: no metric {key!r} in evaluations{did_you_mean(key, metrics)}"
                )

    def _reading(self, split: str) -> Iterator[tuple[Any, str]]:
        """Yield the rules over iterations ("") or over evaluations, with the metric's key in their rows."""
        for rule in self._rules:
            if not isinstance(rule, Diagnosed) and rule.metric.startswith(SPLIT) == bool(split):
                yield rule, rule.metric.removeprefix(split)


def _finite(value: Any) -> float | None:
    """Return a number in the form of the run's files, where NaN and infinity are None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
