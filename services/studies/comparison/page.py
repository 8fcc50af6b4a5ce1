"""The comparison page's content, read and computed from the runs' folders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.runs.report.curves import Chart, draw_svg
from services.runs.report.evaluated import SPLIT_TITLES, read_evaluations
from services.runs.report.run_page import PREDICTION_TEXTS
from services.studies.comparison.curves import Compared, training_panels, validation_panels
from services.studies.comparison.differences import (
    DifferenceTable,
    LastEvaluation,
    difference_table,
    last_evaluations,
)
from services.studies.comparison.groups import MISSING, Group, differing_settings
from services.terminal.readable import duration

NUM_SAMPLES = 6
NUM_SCORES = 4  # shown under a text
SMALL = (340, 180)  # box of a chart, in pixels


@dataclass(frozen=True, slots=True)
class Line:
    """A group in the table of runs."""

    name: str
    runs: tuple[str, ...]
    seeds: str
    iterations: str  # done, of how many
    elapsed: str


@dataclass(frozen=True, slots=True)
class Text:
    """One group's text for a prompt, with its scores."""

    group: int
    name: str  # the group's name
    text: str
    scores: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class SideBySide:
    prompt: str
    texts: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Content for the template."""

    title: str
    lines: tuple[Line, ...]
    settings: tuple[tuple[str, tuple[str, ...]], ...]
    lacking: tuple[tuple[str, tuple[str, ...]], ...]  # settings that some groups do not have
    tables: tuple[DifferenceTable, ...]
    validation: tuple[Chart, ...]
    training: tuple[Chart, ...]
    samples: tuple[SideBySide, ...]
    has_seeds: bool  # whether a group has several runs
    alone: tuple[str, ...]  # groups of one run beside those with several seeds


def gather(groups: Sequence[Group]) -> Page:
    """Return the page's content."""
    last = {split: [last_evaluations(group, split) for group in groups] for split in SPLIT_TITLES}
    tables = [difference_table(title, last[split]) for split, title in SPLIT_TITLES.items()]
    compared = [
        Compared(group, tuple(tuple(read_evaluations(run.folder, "val")) for run in group.runs))
        for group in groups
    ]
    settings, has_seeds = differing_settings(groups), any(len(group.runs) > 1 for group in groups)
    return Page(
        title=" · ".join(group.name for group in groups),
        lines=tuple(_line(group) for group in groups),
        settings=tuple(row for row in settings if MISSING not in row[1]),
        lacking=tuple(row for row in settings if MISSING in row[1]),
        tables=tuple(table for table in tables if table is not None),
        validation=tuple(draw_svg(panel, *SMALL) for panel in validation_panels(compared)),
        training=tuple(draw_svg(panel, *SMALL) for panel in training_panels(compared)),
        samples=side_by_side(groups, last["val"]),
        has_seeds=has_seeds,
        alone=tuple(group.name for group in groups if has_seeds and len(group.runs) == 1),
    )


def side_by_side(
    groups: Sequence[Group], evaluations: Sequence[Sequence[LastEvaluation]]
) -> tuple[SideBySide, ...]:
    """Return the first common prompts, with each group's first text of its first run."""
    if not all(evaluations):
        return ()
    texts = [_first_texts(group_evaluations[0].rows) for group_evaluations in evaluations]
    shared = [prompt for prompt in texts[0] if all(prompt in by_prompt for by_prompt in texts)]
    return tuple(
        SideBySide(
            str(texts[0][prompt].get("prompt_text", "")),
            tuple(
                Text(
                    place,
                    group.runs[0].name,
                    str(by_prompt[prompt].get("generated_text", "")),
                    _scores(by_prompt[prompt]),
                )
                for place, (group, by_prompt) in enumerate(zip(groups, texts, strict=True))
            ),
        )
        for prompt in shared[:NUM_SAMPLES]
    )


def _first_texts(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return each prompt's first row, by the prompt's id and text."""
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault((str(row.get("sample_id")), str(row.get("prompt_text"))), row)
    return first


def _scores(row: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    numbers = [
        (key, float(value))
        for key, value in row.items()
        if key not in PREDICTION_TEXTS and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return tuple(numbers[:NUM_SCORES])


def _line(group: Group) -> Line:
    planned = group.config.get("iterations", "–")
    done = sorted({run.num_done for run in group.runs})
    seconds = sum(float(row.get("time/iteration_s") or 0.0) for run in group.runs for row in run.rows)
    return Line(
        group.name,
        tuple(run.name for run in group.runs),
        ", ".join(run.seed for run in group.runs),
        f"{' to '.join(str(end) for end in dict.fromkeys((done[0], done[-1])))} of {planned}",
        duration(seconds / len(group.runs)) if seconds else "–",
    )
