"""Diagnose a run: apply each rule after every iteration.

    rows, evaluations, settings ─▶ History ─▶ each rule, after each iteration ─▶ Finding: since, until

So a pathology that has ended is found, too, and findings equal the warnings in training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.runs.diagnosis.history import FEWEST, History
from services.runs.diagnosis.rule import Evidence, Rule
from services.runs.diagnosis.rules import RULES

MOST_LOOKS = 400  # iterations at which a long run is checked, evenly spaced, including the last


@dataclass(frozen=True, slots=True)
class Finding:
    """A pathology of a run, with its newest evidence.

    Example: `Finding(rule, since=31, until=80, evidence=Evidence("entropy fell …", {…}), remedy=("…",))`
    """

    rule: Rule
    since: int  # first iteration after which the rule fires
    until: int  # last iteration after which it fires
    evidence: Evidence
    remedy: tuple[str, ...]

    def when(self, last: int) -> str:
        """Say when the rule fires in a run of `last` iterations: since, from … to, or in one iteration."""
        if self.until == last:
            return f"since iteration {self.since}"
        one = self.since == self.until
        return f"in iteration {self.since}" if one else f"from iteration {self.since} to {self.until}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings of the rules about a run."""

    iterations: int
    findings: tuple[Finding, ...]
    silent: tuple[Rule, ...]  # rules that had their numbers and found nothing
    blind: tuple[Rule, ...]  # rules whose numbers the run lacks


def diagnose(history: History, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Apply every rule after every iteration."""
    fired: dict[Rule, list[tuple[int, Evidence, tuple[str, ...]]]] = {}
    able = [rule for rule in rules if rule.can_judge(history)]
    for iteration in _looks(history):
        seen = history.until(iteration)
        for rule in able:
            if evidence := rule.find(seen):
                fired.setdefault(rule, []).append((iteration, evidence, rule.remedy(seen)))
    findings = tuple(
        Finding(rule, since=fired[rule][0][0], until=last, evidence=evidence, remedy=remedy)
        for rule in rules
        if rule in fired
        for last, evidence, remedy in [fired[rule][-1]]
    )
    return Diagnosis(
        history.iteration,
        findings,
        tuple(rule for rule in able if rule not in fired),
        tuple(rule for rule in rules if rule not in able),
    )


def _looks(history: History) -> Iterator[int]:
    """Yield the iterations after which the rules are applied."""
    known = [int(row["iteration"]) for row in history.rows][FEWEST - 1 :]
    step = -(-len(known) // MOST_LOOKS) or 1
    yield from reversed(known[::-1][::step])
