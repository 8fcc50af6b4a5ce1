"""Content of the report's page, computed from a run's folder."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.runs.changes import change_in
from services.runs.claim import flatten
from services.runs.folder import RunFolder
from services.runs.json_lines import merged
from services.runs.player_metrics import PLAYERS, of_player
from services.runs.report.by_part import part_panels
from services.runs.report.curves import (
    HELD_OUT_LOSS,
    LOSS,
    REWARD,
    Chart,
    Panel,
    draw_svg,
    main_panel,
    named_value_panels,
    panels,
)
from services.runs.report.evaluated import (
    SPLIT_TITLES,
    EvaluationTable,
    evaluation_panels,
    evaluation_table,
    measure_panels,
    read_evaluations,
)
from services.runs.report.speed import speed
from services.runs.report.transcripts import Transcript, transcripts
from services.runs.standard_errors import Change, less_is_better
from services.runs.stopping.stopping import StoppedBy
from services.terminal.readable import duration

log = logging.getLogger(__name__)

WON = "environment/won/mean"
PHASES = ("rollout", "reward", "score", "update", "weights")
NUM_SAMPLES = 8
NUM_SCORES = 6  # scores shown under a sample
WIDE, NARROW, SMALL = (1040, 300), (380, 240), (340, 180)  # boxes of charts, in pixels
PREDICTION_TEXTS = (
    *("split_name", "sample_id", "prompt_text", "prompt_as_read", "generated_text", "ref_text"),
    "comment",
)


@dataclass(frozen=True, slots=True)
class Headline:
    """A metric before and after training, with the values of baseline players if there are any."""

    split: str
    metric: str
    before: float
    after: float
    epochs: tuple[int, int]
    baselines: tuple[tuple[str, float], ...] = ()
    change: Change | None = None

    @property
    def colour(self) -> str:
        """Return the change's CSS class: up for a clear improvement, down for a clear decline."""
        if self.change is None or not (self.metric in (WON, REWARD) or less_is_better(self.metric)):
            return ""
        direction = -self.change.direction if less_is_better(self.metric) else self.change.direction
        return {1: "up", -1: "down", 0: ""}[direction]


@dataclass(frozen=True, slots=True)
class SamplePair:
    """The model's texts for one prompt at the first and at the last evaluation."""

    prompt: str
    before: str
    after: str
    scores: tuple[tuple[str, float | None, float | None], ...]  # name, before, after
    comments: tuple[str, str] = ("", "")  # comments from the rewards: before, after


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A phase's mean seconds per iteration, its share of the iteration, and its total seconds."""

    name: str
    mean_s: float
    share: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Page:
    """Content for the template."""

    title: str
    facts: tuple[tuple[str, str], ...]
    diagnosis: str  # file of `whetstone diagnose` in the same folder; "" without one
    num_done: int
    num_planned: int
    stopped_by: str  # rule that stopped the run; "" without one
    headlines: tuple[Headline, ...]
    main_charts: tuple[tuple[str, Chart], ...]  # a wide and a narrow chart; the page shows the one that fits
    charts: tuple[Chart, ...]
    evaluation_charts: tuple[Chart, ...]  # charts of the validation split
    samples: tuple[SamplePair, ...]
    sample_epochs: tuple[int, int]
    transcripts: tuple[Transcript, ...]  # transcripts of episodes, instead of samples
    timings: tuple[PhaseTime, ...]
    tables: tuple[EvaluationTable, ...]
    prompt_as_read: str  # first validation prompt with visible special tokens; "" if unknown
    config_text: str


def gather(folder: RunFolder) -> tuple[Page, list[Panel]]:
    """Return the page's content, and the panels of all its charts."""
    config = folder.config()
    rows = merged(folder.rollout_info(), folder.training_info())
    evaluations = {split: read_evaluations(folder, split) for split in SPLIT_TITLES}
    sums = flatten(config).get("algorithm.reduction") == "sum"
    main = main_panel(rows, folder.evaluations("val"), sums=sums)
    more = panels(rows) + named_value_panels(rows) + part_panels(rows)
    others = [panel for panel in more if not is_shown_in(panel, main)]
    others += measure_panels(folder.rollout_info()) if config.get("measures") else []
    evaluated = [panel for panel in evaluation_panels(evaluations["val"]) if not is_shown_in(panel, main)]
    epochs = folder.prediction_epochs("val")
    shown_epochs = (epochs[0], epochs[-1]) if epochs else (0, 0)
    before, after = (folder.whole_predictions(epoch, "val") if epochs else [] for epoch in shown_epochs)
    played = transcripts(before, after, shown_epochs)
    page = Page(
        title=folder.path.absolute().name,
        facts=_facts(config, rows),
        diagnosis=folder.diagnosis.name if folder.diagnosis.is_file() else "",
        num_done=int(rows[-1]["iteration"]) if rows else 0,
        num_planned=int(config.get("iterations", 0)),
        stopped_by=str(StoppedBy.read(folder) or ""),
        headlines=tuple(filter(None, (_headline(folder, split) for split in SPLIT_TITLES))),
        main_charts=(("wide", draw_svg(main, *WIDE)), ("narrow", draw_svg(main, *NARROW)))
        if main.curves
        else (),
        charts=tuple(draw_svg(panel, *SMALL) for panel in others),
        evaluation_charts=tuple(draw_svg(panel, *SMALL) for panel in evaluated),
        samples=() if played else sample_pairs(before, after),
        sample_epochs=shown_epochs,
        transcripts=played,
        timings=timings(rows),
        tables=tuple(
            evaluation_table(split, of_split) for split, of_split in evaluations.items() if of_split
        ),
        prompt_as_read=str(before[0].get("prompt_as_read", "")) if before else "",
        config_text=folder.config_file.read_text(encoding="utf-8"),
    )
    return page, ([main] if main.curves else []) + others + evaluated


def is_shown_in(panel: Panel, main: Panel) -> bool:
    """Tell whether the main panel has the same curves, so that this panel would repeat them."""
    shown = {curve.label for curve in main.curves} if main.title == LOSS else set()
    return {"Policy loss": "training", HELD_OUT_LOSS: "validation"}.get(panel.title) in shown


def headline(split: str, evaluations: Sequence[Mapping[str, Any]]) -> Headline | None:
    """Return the main metric at the first and the last evaluation; None without one.

    It is the share of games won, otherwise the mean reward, otherwise the first metric.
    """
    known = [
        {key: value for key, value in row["metrics"].items() if value is not None} for row in evaluations
    ]
    if not known:
        return None
    everywhere = (name for name in (WON, REWARD) if all(name in metrics for metrics in known))
    metric = next(everywhere, next(iter(known[0]), None))
    if metric is None or metric not in known[-1]:
        return None
    epochs = (evaluations[0]["epoch"], evaluations[-1]["epoch"])
    others = tuple(
        (player, scores[metric]) for player in PLAYERS if metric in (scores := of_player(player, known[0]))
    )
    return Headline(SPLIT_TITLES[split], metric, known[0][metric], known[-1][metric], epochs, others)


def _headline(folder: RunFolder, split: str) -> Headline | None:
    """Return the headline with its change and the change's standard error."""
    head = headline(split, folder.evaluations(split))
    return head and replace(head, change=change_in(folder, split, head.metric))


def sample_pairs(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> tuple[SamplePair, ...]:
    """Return the first, not the best, NUM_SAMPLES prompts that both evaluations have."""
    later = {_identity(row): row for row in reversed(after)}
    both = [(row, later[_identity(row)]) for row in before if _identity(row) in later]
    one_each = {_identity(old): (old, new) for old, new in reversed(both)}
    return tuple(
        SamplePair(
            prompt=str(old.get("prompt_text", "")),
            before=str(old.get("generated_text", "")),
            after=str(new.get("generated_text", "")),
            scores=_scores(old, new),
            comments=(str(old.get("comment", "")), str(new.get("comment", ""))),
        )
        for old, new in list(reversed(one_each.values()))[:NUM_SAMPLES]
    )


def timings(rows: Sequence[Mapping[str, Any]]) -> tuple[PhaseTime, ...]:
    """Return the time of each phase of an iteration; "other" is the rest.

    Phases may overlap, because texts are scored while others are written. Then shares are of the phases' sum.
    """
    timed = [row for row in rows if row.get("time/iteration_s")]
    if not timed:
        return ()
    totals = {phase: sum(row.get(f"time/{phase}_s") or 0.0 for row in timed) for phase in PHASES}
    iterations_s = sum(row["time/iteration_s"] for row in timed)
    totals["other"] = max(0.0, iterations_s - sum(totals.values()))
    whole_s = sum(totals.values())
    return tuple(
        PhaseTime(phase, total / len(timed), total / whole_s, total) for phase, total in totals.items()
    )


def _facts(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    flat = flatten(config)
    facts = []
    for label, keys in (
        ("model", ("model.path",)),
        ("algorithm", ("algorithm.name", "algorithm")),
        ("task", ("task.name", "task")),
        ("seed", ("seed",)),
    ):
        setting = next((flat[key] for key in keys if flat.get(key) is not None), None)
        if setting is not None:
            facts.append((label, str(setting)))
    if elapsed_s := sum(row.get("time/iteration_s") or 0.0 for row in rows):
        facts.append(("time in iterations", duration(elapsed_s)))
    return (*facts, *speed(rows))


def _identity(row: Mapping[str, Any]) -> Any:
    return row.get("sample_id", row.get("prompt_text"))


def _scores(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[tuple[str, float | None, float | None], ...]:
    names = [
        key
        for key in dict.fromkeys((*old, *new))
        if key not in PREDICTION_TEXTS and any(isinstance(row.get(key), int | float) for row in (old, new))
    ]
    return tuple((name, old.get(name), new.get(name)) for name in names[:NUM_SCORES])
