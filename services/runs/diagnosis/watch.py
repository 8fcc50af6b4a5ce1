"""Warnings during a run, by the rules of `whetstone diagnose`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.runs.diagnosis.history import EARLY, WINDOW, History, Row
from services.runs.diagnosis.rule import Evidence, Rule
from services.runs.diagnosis.rules import RULES

log = logging.getLogger(__name__)
PAUSE = 50  # iterations between two warnings by one rule
KEPT = 10 * WINDOW  # last rows of a long run that are kept, besides the first ones


@dataclass(slots=True)
class Watch:
    """Watcher of a run. It gets iterations and evaluations, and returns the rules' findings."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES
    rows: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    _told: dict[str, int] = field(default_factory=dict)  # rule: iteration of its last warning

    @classmethod
    def of(cls, history: History) -> "Watch":
        """Return a watch over a resumed run. It repeats no earlier findings."""
        watch = cls()
        watch.resume(history)
        return watch

    def resume(self, history: History) -> None:
        """Resume a run, without repeating earlier findings."""
        self.settings, self.evaluations = history.settings, list(history.evaluations)
        self.rows = [*history.rows[:EARLY], *history.rows[EARLY:][-KEPT:]]
        self._told |= {rule.name: history.iteration for rule, _ in self._found()}

    def finding(self, name: str) -> Evidence | None:
        """Return the evidence of the rule with this name; None if it does not fire."""
        return next((evidence for rule, evidence in self._found() if rule.name == name), None)

    def evaluated(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Record an evaluation of the validation split after `iteration` iterations."""
        while self.evaluations and self.evaluations[-1]["epoch"] >= iteration:
            self.evaluations.pop()
        self.evaluations.append({"epoch": iteration, "metrics": dict(metrics)})

    def warnings(self, iteration: int, metrics: Mapping[str, Any]) -> list[str]:
        """Record an iteration; return the rules' warnings, each at most once in PAUSE iterations."""
        while self.rows and self.rows[-1]["iteration"] >= iteration:  # a resumed run repeats iterations
            self.rows.pop()
        self.rows.append({"iteration": iteration, **metrics})
        if len(self.rows) > EARLY + KEPT:
            del self.rows[EARLY]
        sentences = []
        for rule, evidence in self._found():
            if iteration - self._told.get(rule.name, -PAUSE) >= PAUSE:
                self._told[rule.name] = iteration
                sentences.append(_sentence(rule, evidence, rule.remedy(self._seen)))
        return sentences

    def _found(self) -> Iterator[tuple[Rule, Evidence]]:
        seen = self._seen
        for rule in self.rules:
            try:
                evidence = rule.find(seen) if rule.can_judge(seen) else None
            except Exception:  # a broken rule must not end a long run
                log.debug("the rule %s failed", rule.name, exc_info=True)
                continue
            if evidence:
                yield rule, evidence

    @property
    def _seen(self) -> History:
        return History(self.rows, self.evaluations, self.settings)


def _sentence(rule: Rule, evidence: Evidence, remedy: Sequence[str]) -> str:
    return f"{rule.title}: {evidence.said}. Try: {remedy[0]} (whetstone diagnose says more)"
