"""Score samples with one reward or metric, in this process."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import InputError, did_you_mean
from contracts.scores import MetricValue, Sample
from reward_servers.evaluated_metrics import refuse_evaluated
from reward_servers.graders import METRICS, REWARDS
from reward_servers.local import LocalRewardClient
from reward_servers.needs import has_reference, missing_keys, shown_keys
from reward_servers.part_checks import check_at_hand, check_parts, needs_meta, needs_references
from reward_servers.server import MetricServer
from reward_servers.settings import Part, parts
from reward_servers.user_rewards.own import find_grader as of_name
from reward_servers.user_rewards.trial import Trial, is_own


def find_grader(name: str, options: Mapping[str, Any], as_reward: bool) -> tuple[str, Part]:
    """Find a component and its kind; a name of both kinds is the metric, unless `as_reward`.

    Raises:
        InputError: the component is unknown, or its options or requirements are wrong.
    """
    if ":" in name:
        is_metric = hasattr(of_name("reward", name), "compute")
    elif name in METRICS or name in REWARDS:
        is_metric = name in METRICS
    else:
        near = did_you_mean(name, METRICS.keys() | REWARDS.keys())
        raise InputError(
            f"{name}: no such metric or reward{near}\nOne of your own is written package.module:Class, or "
            "FILE.py:NAME."
        )
    kind = "metric" if is_metric and not as_reward else "reward"
    (part,) = parts({"name": name, "options": dict(options)}, where=kind)
    check_parts(kind, [part])
    check_at_hand(kind, [part])
    if kind == "metric":
        refuse_evaluated([part])
    return kind, part


def check_needs(kind: str, part: Part, samples: Sequence[Sample]) -> None:
    """Check that every sample has the component's required references and meta data.

    Raises:
        InputError: a sample lacks them; the message names the first.
    """
    needed = needs_meta(kind, part)
    for number, sample in enumerate(samples, start=1):
        if needs_references(kind, part) and not has_reference(sample.references):
            references = "only empty ones" if sample.references else "none"
            raise InputError(
                f"{kind} {part.label} compares with references, and sample {number} has {references}: give "
                '--references FILE, a line {"references": ["…"]} for each prediction, none of them empty'
            )
        if missing := missing_keys(needed, sample.meta):
            raise InputError(
                f"{kind} {part.label} needs meta data {', '.join(missing)}, and sample {number} has: "
                f"{shown_keys(sample.meta)}. Give it in the prediction's line: "
                f'"meta": {{"{missing[0].partition(" ")[0]}": …}}'
            )


def metric_values(part: Part, samples: Sequence[Sample]) -> dict[str, MetricValue]:
    """Compute a metric of the samples.

    Raises:
        InputError: a metric of the user's own fails on the first samples.
    """
    server = MetricServer(part)
    if is_own(part):
        server.try_out(_trial_of(samples)).check()
    return server.compute(samples)


@dataclass(frozen=True, slots=True)
class Scored:
    """A reward's scores, named values present in every sample, and records as JSON.

    Example: `Scored({"mine": MetricValue(0.5, (0.0, 1.0))}, [0.0, {"score": 1.0, "comment": "Well."}])`
    """

    values: dict[str, MetricValue]
    grades: list[Any] | None = None  # None: all scores are plain numbers


def reward_values(part: Part, samples: Sequence[Sample]) -> Scored:
    """Score the samples with a reward; print its warnings on standard error.

    Raises:
        InputError: a sample could not be scored.
    """
    client = LocalRewardClient([part])
    for warning in client.try_out(_trial_of(samples)):
        print(f"warning: {warning}", file=sys.stderr)
    scores = client.submit(samples).result()
    failures = [score.error for score in scores if score.error is not None]
    if failures:
        raise InputError(
            f"{len(failures)} of {len(samples)} samples could not be scored; the first: {failures[0]}"
        )
    rows = tuple(score.parts[part.label] for score in scores)
    values = {part.label: MetricValue(corpus=sum(rows) / len(rows), rows=rows)}
    grades = [score.grades.get(part.label) for score in scores]
    for name in dict.fromkeys(name for grade in grades if grade for name in grade.values):
        by_row = [grade.values.get(name) if grade else None for grade in grades]
        there = tuple(value for value in by_row if value is not None)
        of_all = there if len(there) == len(by_row) else None
        values[f"{part.label}/{name}"] = MetricValue(corpus=sum(there) / len(there), rows=of_all)
    shown = [row if grade is None else grade.as_json() for row, grade in zip(rows, grades, strict=True)]
    return Scored(values, shown if any(grades) else None)


def _trial_of(samples: Sequence[Sample]) -> Trial:
    """Return a trial of the first two samples, to find a fault before scoring all."""
    return Trial(tuple(samples[:2]), are_real=True)
