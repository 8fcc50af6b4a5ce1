"""Results of a reproduction: each cell of the table, from the runs' folders and the published values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.benchmarks.table import Estimate, estimate
from services.report.evaluated import Evaluated, read_evaluations
from services.reproduction.plan import Step
from services.reproduction.published import Published, values_of
from services.reproduction.recipe import Measure, Recipe
from services.reproduction.verdict import Verdict, verdict
from services.runs import provenance
from services.terminal.readable import duration


@dataclass(frozen=True, slots=True)
class Cell:
    """One row's column: what others have, what we have, and what follows."""

    published: Published | None
    others: Sequence[Published]  # of outsiders, earlier versions and logs
    ours: Estimate | None
    verdict: Verdict


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
    reached = verdict(ours, theirs)
    alone: Verdict = "ours alone"
    others = [each for each in values if each is not theirs]
    return Cell(theirs, others, ours, alone if recipe.rows[name].ours and ours else reached)


def _estimate(measure: Measure, found: Sequence[Evaluated]) -> Estimate | None:
    """Return the mean over seeds, with their error; or with that over prompts, where all seeds are level.

    That is so for one seed, and for greedy texts of an untrained model: its seeds repeat one measurement.
    """
    known = [each for each in found if measure.key in each.metrics]
    mean = estimate([each.metrics[measure.key] * measure.factor for each in known if measure.key])
    if mean is None or mean.standard_error or measure.key is None:
        return mean
    error = known[0].errors.get(measure.key)
    return replace(mean, standard_error=None if error is None else error * abs(measure.factor))


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
