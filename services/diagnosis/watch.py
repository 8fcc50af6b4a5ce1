"""Warnings while a run goes on, by the rules of `whetstone diagnose`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.diagnosis.history import EARLY, WINDOW, History, Row
from services.diagnosis.rule import Evidence, Rule
from services.diagnosis.rules import RULES

log = logging.getLogger(__name__)
PAUSE = 50  # iterations between two warnings by one rule
KEPT = 10 * WINDOW  # last rows that a long run keeps, beside its first ones


@dataclass(slots=True)
class Watch:
    """Watcher of a run: hears of its iterations and evaluations, and says what the rules find."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES
    rows: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    _told: dict[str, int] = field(default_factory=dict)  # rule: iteration of its last warning

    @classmethod
    def of(cls, history: History) -> "Watch":
        """Return a watch over a run that goes on; what the rules say about it so far is not said again."""
        watch = cls(history.settings, rows=list(history.rows), evaluations=list(history.evaluations))
        watch._told = {rule.name: history.iteration for rule, _ in watch._found()}
        return watch

    def evaluated(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Hear of an evaluation of the validation split after `iteration` iterations."""
        while self.evaluations and self.evaluations[-1]["epoch"] >= iteration:
            self.evaluations.pop()
        self.evaluations.append({"epoch": iteration, "metrics": dict(metrics)})

    def warnings(self, iteration: int, metrics: Mapping[str, Any]) -> list[str]:
        """Hear of an iteration; return what the rules say, each at most once in PAUSE iterations."""
        while self.rows and self.rows[-1]["iteration"] >= iteration:  # it is repeated after a resume
            self.rows.pop()
        self.rows.append({"iteration": iteration, **metrics})
        if len(self.rows) > EARLY + KEPT:
            del self.rows[EARLY]
        said = []
        for rule, evidence in self._found():
            if iteration - self._told.get(rule.name, -PAUSE) >= PAUSE:
                self._told[rule.name] = iteration
                said.append(_sentence(rule, evidence, rule.remedy(self._seen)))
        return said

    def _found(self) -> Iterator[tuple[Rule, Evidence]]:
        seen = self._seen
        for rule in self.rules:
            try:
                evidence = rule.find(seen) if rule.can_judge(seen) else None
            except Exception:  # advice must not end a run of days
                log.debug("the rule %s failed", rule.name, exc_info=True)
                continue
            if evidence:
                yield rule, evidence

    @property
    def _seen(self) -> History:
        return History(self.rows, self.evaluations, self.settings)


def _sentence(rule: Rule, evidence: Evidence, remedy: Sequence[str]) -> str:
    return f"{rule.title}: {evidence.said}. Try: {remedy[0]} (whetstone diagnose says more)"
