"""Results of a reproduction: each cell of the table, from the runs' folders and the published values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from services.benchmarks.table import Estimate, estimate
from services.report.evaluated import Evaluated, read_evaluations
from services.reproduction.plan import Step
from services.reproduction.published import Published, values_of
from services.reproduction.recipe import Measure, Recipe
from services.reproduction.verdict import Verdict, verdict
from services.runs import provenance
from services.terminal.readable import duration

MOST_POINTS = 6  # of a curve in the Markdown page


@dataclass(frozen=True, slots=True)
class Cell:
    """One row's column: what others have, what we have, and what follows."""

    published: Published | None
    others: Sequence[Published]  # of outsiders, earlier versions and logs
    ours: Estimate | None
    verdict: Verdict
    sought: bool  # its value was looked for in the source


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table, with a cell for each measure."""

    name: str
    note: str
    ours: bool
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Started:
    """One run of a row, for the list of runs."""

    name: str
    state: str
    elapsed: str
    commits: tuple[str, ...]
    versions: str
    report: str  # its address; empty: there is none


@dataclass(frozen=True, slots=True)
class CurvePoints:
    """Validation values of a measure at a few iterations: a row's mean over its seeds; None: not known.

    Example: `CurvePoints("sentiment", (0, 10), {"ppo": (0.49, 0.60)})`
    """

    metric: str
    epochs: tuple[int, ...]
    values: Mapping[str, tuple[float | None, ...]]


def curves_of(recipe: Recipe, steps: Sequence[Step]) -> list[CurvePoints]:
    """Return the curves of all measures that some run has at two iterations or more."""
    by_row = {
        name: [
            {each.epoch: each.metrics for each in read_evaluations(step.folder, "val")}
            for step in steps
            if (step.command, step.row) == ("train", name) and step.folder.config_file.exists()
        ]
        for name in recipe.trained
    }
    found = []
    for metric, measure in recipe.measures.items():
        known = {name: values for name, runs in by_row.items() if (values := _means_by_epoch(measure, runs))}
        epochs = _spread(sorted({epoch for values in known.values() for epoch in values}))
        if len(epochs) > 1:
            points = {name: tuple(map(values.get, epochs)) for name, values in known.items()}
            found.append(CurvePoints(metric, epochs, points))
    return found


def _means_by_epoch(measure: Measure, runs: Sequence[Mapping[int, Mapping[str, float]]]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in runs:
        for epoch, metrics in run.items():
            if measure.key is not None and measure.key in metrics:
                values.setdefault(epoch, []).append(metrics[measure.key] * measure.factor)
    return {epoch: fmean(own) for epoch, own in values.items()}


def _spread(epochs: Sequence[int]) -> tuple[int, ...]:
    """Return at most MOST_POINTS of them, evenly, with the first and the last.

    >>> _spread(range(0, 101, 10)), _spread([0, 5])
    ((0, 20, 40, 60, 80, 100), (0, 5))
    """
    if len(epochs) <= MOST_POINTS:
        return tuple(epochs)
    last = len(epochs) - 1
    return tuple(epochs[round(place * last / (MOST_POINTS - 1))] for place in range(MOST_POINTS))


def lines_of(recipe: Recipe, steps: Sequence[Step]) -> list[Line]:
    """Return the table of these steps; a run that is not finished gives no number."""
    found = {name: _evaluations(recipe, name, steps) for name in recipe.rows}
    return [
        Line(
            name,
            row.note,
            row.ours,
            {
                metric: _cell(recipe, name, metric, each, found[name])
                for metric, each in recipe.measures.items()
            },
        )
        for name, row in recipe.rows.items()
    ]


def started(steps: Sequence[Step]) -> list[Started]:
    """Return the state of each run, with the commits and versions that it began with."""
    found = []
    for step in steps:
        if step.command != "train":
            continue
        folder = step.folder
        rows = folder.rollout_info() if folder.config_file.exists() else []
        seconds = sum(float(row.get("time/iteration_s") or 0.0) for row in rows)
        starts = provenance.starts(folder)
        commits = dict.fromkeys(_commit(start) for start in starts)
        versions = starts[-1].get("versions", {}) if starts else {}
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        state = "finished" if step.is_done() else f"{rows[-1]['iteration']} iterations" if rows else "not run"
        found.append(
            Started(
                *(step.job.run_name, state, duration(seconds) if seconds else "–", tuple(commits), told),
                f"{step.job.run_name}/report.html" if folder.report.exists() else "",
            )
        )
    return found


def _commit(start: Mapping[str, Any]) -> str:
    commit = str(start.get("commit") or "no commit")[:7]
    return f"{commit} with changes" if start.get("changed") else commit


def _cell(
    recipe: Recipe, name: str, metric: str, measure: Measure, found: Sequence[Mapping[str, Evaluated]]
) -> Cell:
    values = values_of(recipe.name, name, metric)
    ours = _estimate(measure, [each[measure.split] for each in found if measure.split in each])
    theirs = next((each for each in values if each.by == "paper"), None)
    row = recipe.rows[name]
    sought = measure.sought and row.sought and not row.ours
    reached: Verdict = "ours alone" if row.ours and ours else verdict(ours, theirs, sought=sought)
    return Cell(theirs, [each for each in values if each is not theirs], ours, reached, sought)


def _estimate(measure: Measure, found: Sequence[Evaluated]) -> Estimate | None:
    """Return the mean over seeds, with their error; or with that over prompts, where all seeds are level.

    That is so for one seed, and for greedy texts of an untrained model: its seeds repeat one measurement.
    """
    known = [each for each in found if measure.key in each.metrics]
    mean = estimate([each.metrics[measure.key] * measure.factor for each in known if measure.key])
    if mean is None or mean.standard_error or measure.key is None:
        return mean
    error = known[0].errors.get(measure.key)
    if error is None:
        return replace(mean, standard_error=None)
    return replace(mean, standard_error=error * abs(measure.factor), over="prompts")


def _evaluations(recipe: Recipe, name: str, steps: Sequence[Step]) -> list[dict[str, Evaluated]]:
    """Return each seed's evaluation by split: the first one of the other row for `before`, else the last."""
    before, found = recipe.rows[name].before, []
    for step in steps:
        if (step.command, step.row) != ("train", before or name):
            continue
        if not (step.folder.config_file.exists() if before else step.is_done()):
            continue
        by_split = {split: read_evaluations(step.folder, split) for split in ("val", "test")}
        wanted = {
            split: own[0] if before else own[-1]
            for split, own in by_split.items()
            if own and (not before or own[0].epoch == 0)
        }
        found.append(wanted)
    return found
