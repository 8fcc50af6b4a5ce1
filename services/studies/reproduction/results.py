"""Results of a reproduction: each cell of the table, from the runs' folders and the published values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from services.runs import provenance
from services.runs.report.evaluated import Evaluated, read_evaluations
from services.studies.benchmarks.table import Estimate, estimate
from services.studies.reproduction.plan import Step
from services.studies.reproduction.published import Published, values_of
from services.studies.reproduction.recipe import Measure, Recipe
from services.studies.reproduction.verdict import Verdict, verdict
from services.terminal.readable import duration

MOST_POINTS = 6  # most points of a curve in the Markdown page


@dataclass(frozen=True, slots=True)
class Cell:
    """One row's column: what others have, what we have, and what follows."""

    published: Published | None
    others: Sequence[Published]  # values of outsiders, earlier versions and logs
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
            {evaluation.epoch: evaluation.metrics for evaluation in read_evaluations(step.folder, "val")}
            for step in steps
            if (step.command, step.row) == ("train", name) and step.folder.config_file.exists()
        ]
        for name in recipe.trained
    }
    curves = []
    for metric, measure in recipe.measures.items():
        known = {name: values for name, runs in by_row.items() if (values := _means_by_epoch(measure, runs))}
        epochs = _spread(sorted({epoch for values in known.values() for epoch in values}))
        if len(epochs) > 1:
            points = {name: tuple(map(values.get, epochs)) for name, values in known.items()}
            curves.append(CurvePoints(metric, epochs, points))
    return curves


def _means_by_epoch(measure: Measure, runs: Sequence[Mapping[int, Mapping[str, float]]]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in runs:
        for epoch, metrics in run.items():
            if measure.key is not None and measure.key in metrics:
                values.setdefault(epoch, []).append(metrics[measure.key] * measure.factor)
    return {epoch: fmean(numbers) for epoch, numbers in values.items()}


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
    evaluations = {name: _evaluations(recipe, name, steps) for name in recipe.rows}
    return [
        Line(
            name,
            row.note,
            row.ours,
            {
                metric: _cell(recipe, name, metric, measure, evaluations[name])
                for metric, measure in recipe.measures.items()
            },
        )
        for name, row in recipe.rows.items()
    ]


def started(steps: Sequence[Step]) -> list[Started]:
    """Return the state of each run, with the commits and versions that it began with."""
    runs = []
    for step in steps:
        if step.command != "train":
            continue
        folder = step.folder
        rows = folder.rollout_info() if folder.config_file.exists() else []
        seconds = sum(float(row.get("time/iteration_s") or 0.0) for row in rows)
        starts = provenance.starts(folder)
        commits = dict.fromkeys(_commit(start) for start in starts)
        versions = starts[-1].get("versions", {}) if starts else {}
        text = ", ".join(f"{name} {version}" for name, version in versions.items())
        state = "finished" if step.is_done() else f"{rows[-1]['iteration']} iterations" if rows else "not run"
        runs.append(
            Started(
                *(step.job.run_name, state, duration(seconds) if seconds else "–", tuple(commits), text),
                f"{step.job.run_name}/report.html" if folder.report.exists() else "",
            )
        )
    return runs


def _commit(start: Mapping[str, Any]) -> str:
    commit = str(start.get("commit") or "no commit")[:7]
    return f"{commit} with changes" if start.get("changed") else commit


def _cell(
    recipe: Recipe, name: str, metric: str, measure: Measure, evaluations: Sequence[Mapping[str, Evaluated]]
) -> Cell:
    values = values_of(recipe.name, name, metric)
    ours = _estimate(
        measure, [by_split[measure.split] for by_split in evaluations if measure.split in by_split]
    )
    theirs = next((value for value in values if value.by == "paper"), None)
    row = recipe.rows[name]
    sought = measure.sought and row.sought and not row.ours
    reached: Verdict = "ours alone" if row.ours and ours else verdict(ours, theirs, sought=sought)
    return Cell(theirs, [value for value in values if value is not theirs], ours, reached, sought)


def _estimate(measure: Measure, evaluations: Sequence[Evaluated]) -> Estimate | None:
    """Return the mean over seeds, with their error; or with that over prompts, where all seeds are level.

    That is so for one seed, and for greedy texts of an untrained model: its seeds repeat one measurement.
    """
    with_metric = [evaluation for evaluation in evaluations if measure.key in evaluation.metrics]
    mean = estimate(
        [evaluation.metrics[measure.key] * measure.factor for evaluation in with_metric if measure.key]
    )
    if mean is None or mean.standard_error or measure.key is None:
        return mean
    error = with_metric[0].errors.get(measure.key)
    if error is None:
        return replace(mean, standard_error=None)
    return replace(mean, standard_error=error * abs(measure.factor), over="prompts")


def _evaluations(recipe: Recipe, name: str, steps: Sequence[Step]) -> list[dict[str, Evaluated]]:
    """Return each seed's evaluation by split: the first one of the other row for `before`, else the last."""
    before, evaluations = recipe.rows[name].before, []
    for step in steps:
        if (step.command, step.row) != ("train", before or name):
            continue
        if not (step.folder.config_file.exists() if before else step.is_done()):
            continue
        by_split = {split: read_evaluations(step.folder, split) for split in ("val", "test")}
        wanted = {
            split: of_split[0] if before else of_split[-1]
            for split, of_split in by_split.items()
            if of_split and (not before or of_split[0].epoch == 0)
        }
        evaluations.append(wanted)
    return evaluations
