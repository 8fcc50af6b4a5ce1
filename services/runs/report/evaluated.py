"""Evaluations in the report: every metric with its standard error, as curves with bands and as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.runs.changes import error_of
from services.runs.folder import RunFolder
from services.runs.part_names import PARTS, split_name
from services.runs.player_metrics import BASELINE, PLAYERS, of_player
from services.runs.report.by_part import evaluated_panels
from services.runs.report.curves import BANDS, REWARD, Curve, Panel, curve_of, is_number
from services.runs.standard_errors import error_key, is_error
from services.terminal.readable import number, with_error

MOST_COLUMNS = 6  # evaluations in a table; the curves show all of them
SPLIT_TITLES = {"val": "Validation", "test": "Test"}
LESS_TOLD = ("reward/std",)
# Prefixes of the names that a run logs. Others are the user's measures.
OWN_NAMES = (
    *("iteration", "reward/", "response_", "kl/", "staleness/", "mismatch", "rollouts/", "finish/"),
    *("groups/", "prompts/", "refill/", "time/", "throughput/", "workers/", "weights/", "data/", "mask/"),
    *("environment/", "turns/", "parts/", "curriculum/", "order/"),
)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation: its metrics, and their standard errors if known.

    Example: `Evaluated(20, {"reward/mean": 0.61, "lexical/bleu": 0.3}, {"reward/mean": 0.02})`
    """

    epoch: int
    metrics: Mapping[str, float]
    errors: Mapping[str, float]

    def shown(self, metric: str) -> str:
        """Return the metric as text, with its error; a dash if it is missing."""
        value = self.metrics.get(metric)
        return number(None) if value is None else with_error(value, self.errors.get(metric))

    @property
    def row(self) -> dict[str, Any]:
        """Return the numbers as a row for `curve_of`."""
        errors = {error_key(metric): error for metric, error in self.errors.items()}
        return {"iteration": self.epoch, **self.metrics, **errors}


@dataclass(frozen=True, slots=True)
class EvaluationTable:
    """A row for each metric; a column for each baseline player, then for each evaluation."""

    split: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def read_evaluations(folder: RunFolder, split: str) -> list[Evaluated]:
    """Return all evaluations of a split. Compute missing errors from the predictions."""
    epochs = folder.prediction_epochs(split)
    evaluations = []
    for line in folder.evaluations(split):
        rows = folder.whole_predictions(line["epoch"], split) if line["epoch"] in epochs else ()
        metrics = {
            key: value for key, value in line["metrics"].items() if is_number(value) and not is_error(key)
        }
        errors = {key: error_of(key, line["metrics"], rows) for key in metrics}
        known = {key: error for key, error in errors.items() if error is not None}
        evaluations.append(Evaluated(line["epoch"], metrics, known))
    return evaluations


def evaluation_panels(evaluations: Sequence[Evaluated]) -> list[Panel]:
    """Return a panel of mean@k, pass@k and maj@k, and one for each other requested metric."""
    rows = [evaluation.row for evaluation in evaluations]
    names = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics))
    at_k = [name for name in names if "@" in name and not name.startswith(f"{BASELINE}/")]
    shown = [name for name in at_k if not name.startswith("pass@")]
    tries = sorted((name for name in at_k if name.startswith("pass@")), key=_tries)
    shown += [tries[0], tries[-1]] if len(tries) > 1 else tries
    curves = [curve_of(name, name, rows) for name in shown]
    panels = [_panel("Several texts per prompt", curves)] if curves else []
    panels += [_panel(name, [curve_of(name, name, rows)]) for name in names if is_asked_for(name)]
    return panels + evaluated_panels(rows, [name for name in names if is_of_part(name)])


def measure_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each of the user's measures.

    Args:
        rows: rows of rollout_info.jsonl, which holds the measures.
    """
    curves = [curve_of(name, name, rows) for name in measure_names(rows)]
    return [Panel(curve.label, "your own measure", (curve,)) for curve in curves if curve.points]


def measure_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the user's measures in the rows of rollout_info.jsonl."""
    return list(dict.fromkeys(name for row in rows for name in row if not name.startswith(OWN_NAMES)))


def evaluation_table(split: str, evaluations: Sequence[Evaluated]) -> EvaluationTable:
    """Return the table of a split. Of many evaluations it has the first, the last, and some between."""
    names = [
        name
        for name in dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics)
        if not name.startswith(f"{BASELINE}/")
    ]
    players = {player: of_player(player, evaluations[0].metrics) for player in PLAYERS}
    players = {player: metrics for player, metrics in players.items() if metrics}
    chosen = spread(evaluations)
    columns = (*players, *(f"iteration {evaluation.epoch}" for evaluation in chosen))
    rows = tuple(
        (
            name,
            (
                *(number(metrics.get(name)) for metrics in players.values()),
                *(evaluation.shown(name) for evaluation in chosen),
            ),
        )
        for name in names
    )
    return EvaluationTable(SPLIT_TITLES[split], columns, rows)


def spread(evaluations: Sequence[Evaluated]) -> list[Evaluated]:
    """Return at most MOST_COLUMNS evaluations, evenly spread, including the first and the last."""
    last = len(evaluations) - 1
    if last < MOST_COLUMNS:
        return list(evaluations)
    return [evaluations[round(place * last / (MOST_COLUMNS - 1))] for place in range(MOST_COLUMNS)]


def _panel(title: str, curves: Sequence[Curve]) -> Panel:
    note = BANDS if any(curve.band for curve in curves) else ""
    return Panel(title, note, tuple(replace(curve, is_sparse=True) for curve in curves))


def is_asked_for(name: str) -> bool:
    """Tell whether the user requested a metric, and no other panel has it."""
    names_elsewhere = (REWARD, *LESS_TOLD, "response_length/mean")
    elsewhere = ("reward/", f"{BASELINE}/", f"{PARTS}/")
    return "@" not in name and name not in names_elsewhere and not name.startswith(elsewhere)


def is_of_part(name: str) -> bool:
    """Tell whether a metric is a part's reward, or the user requested it for the part."""
    part_and_name = split_name(name)
    return part_and_name is not None and (part_and_name[1] == REWARD or is_asked_for(part_and_name[1]))


def _tries(name: str) -> int:
    return int(name.removeprefix("pass@"))
