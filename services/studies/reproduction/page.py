"""A reproduction's page as HTML and Markdown: table, settings, curves and samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.runs import report
from services.runs.json_lines import write_atomically
from services.runs.report.marked import breakable
from services.studies.comparison.groups import FEWEST, read_groups
from services.studies.comparison.page import Page as Comparison
from services.studies.comparison.page import gather
from services.studies.reproduction.plan import Asked, Step
from services.studies.reproduction.published import CERTAINTIES, NOT_FOUND, Published, published
from services.studies.reproduction.recipe import Recipe
from services.studies.reproduction.results import (
    Cell,
    CurvePoints,
    Line,
    Started,
    curves_of,
    lines_of,
    started,
)
from services.studies.reproduction.verdict import MEANINGS
from services.terminal.readable import number, with_error
from services.terminal.templates import templates_in

NAME = "reproduction"
IS_SMALL = (
    "These numbers are not a reproduction. --small trains tiny untrained stand-ins for minutes, to try every "
    "column, metric and table."
)
EXACT = (
    "A published value without an error counts as exact, apart from its rounding. Its spread is not known, "
    "so a verdict of below or above is firmer than it should be."
)
WHO = {"paper": "", "earlier": " (earlier)", "log": " (log)", "outsider": ""}
ARROWS = {"up": "↑", "down": "↓", "neither": ""}
NUM_COLOURS = 6
NUM_SAMPLES, MOST_LETTERS = 2, 240  # limits of the Markdown page


@dataclass(frozen=True, slots=True)
class Content:
    """The page's content."""

    recipe: Recipe
    options: Asked
    lines: Sequence[Line]
    runs: Sequence[Started]
    comparison: Comparison | None
    sources: Sequence[Published]
    curves: Sequence[CurvePoints] = ()

    @property
    def commits(self) -> list[str]:
        return list(dict.fromkeys(commit for run in self.runs for commit in run.commits))

    @property
    def versions(self) -> list[str]:
        return list(dict.fromkeys(run.versions for run in self.runs if run.versions))

    @property
    def changed(self) -> list[str]:
        """Return the runs' settings that differ from the recipe's."""
        from services.studies.reproduction.plan import SMALL

        return [
            *(SMALL if self.options.small else ()),
            *(self.recipe.small if self.options.small else ()),
            *self.options.overrides,
        ]


def write_page(recipe: Recipe, options: Asked, steps: Sequence[Step]) -> list[Path]:
    """Write reproduction.html and reproduction.md beside the runs; return their paths."""
    options.out.mkdir(parents=True, exist_ok=True)
    content = gathered(recipe, options, steps)
    texts = {f"{NAME}.html": to_html(content), f"{NAME}.md": to_markdown(content)}
    return [write_atomically(options.out / name, text) for name, text in texts.items()]


def gathered(recipe: Recipe, options: Asked, steps: Sequence[Step]) -> Content:
    folders = [step.folder for step in steps if step.command == "train" and step.folder.has_results()]
    return Content(
        recipe,
        options,
        lines_of(recipe, steps),
        started(steps),
        gather(read_groups(folders)) if len(folders) >= FEWEST else None,
        [value for value in published() if value.recipe == recipe.name],
        curves_of(recipe, steps),
    )


def to_html(content: Content) -> str:
    """Return a self-contained page."""
    environment = templates_in(
        Path(__file__).parent,
        Path(report.__file__).parent,
        filters={"number": number, "breakable": breakable},
    )
    return environment.get_template("reproduction.html.j2").render(
        content=content,
        recipe=content.recipe,
        small=IS_SMALL if content.options.small else "",
        theirs=theirs,
        others=others,
        not_found=NOT_FOUND,
        ours=ours,
        over=over,
        exact=EXACT,
        arrows=ARROWS,
        meanings=MEANINGS,
        certainties=CERTAINTIES,
        num_colours=NUM_COLOURS,
    )


def to_markdown(content: Content) -> str:
    """Return the page as text, with a few points of curves and two samples."""
    recipe = content.recipe
    blocks = [f"# {recipe.title}"]
    blocks += [f"**{IS_SMALL}**"] if content.options.small else []
    blocks.append(
        f"{recipe.paper}. Recipe `{recipe.name}`, seeds {', '.join(map(str, content.options.seeds))}, "
        f"commit {', '.join(content.commits) or 'none: nothing was run'}."
    )
    for metric, measure in recipe.measures.items():
        head = ["row", "published", "others", "ours", "± over", "verdict"]
        rows = [
            [line.name, theirs(cell), others(cell), ours(cell), over(cell), cell.verdict]
            for line in content.lines
            for cell in (line.cells[metric],)
        ]
        blocks.append(f"## {metric} {ARROWS[measure.better]}".rstrip())
        blocks += [f"{measure.note[0].upper()}{measure.note[1:]}."] if measure.note else []
        blocks.append("\n".join(_row(row) for row in (head, ["---"] * len(head), *rows)))
    verdicts = {cell.verdict for line in content.lines for cell in line.cells.values()}
    blocks.append("\n".join(f"- **{name}**: {MEANINGS[name]}" for name in MEANINGS if name in verdicts))
    blocks.append(EXACT)
    blocks += _curves(content.curves) + _samples(content.comparison)
    blocks += ["## What differs from the paper", _list(recipe.differs)]
    blocks += [
        "Settings that these runs changed:",
        _list([f"`{setting}`" for setting in content.changed]),
    ] * bool(content.changed)
    blocks += [_list(recipe.notes)] * bool(recipe.notes)
    blocks += ["## Sources", _list([_source(value) for value in content.sources]) or "No value was found."]
    runs = [[run.name, run.state, run.elapsed, ", ".join(run.commits) or "–"] for run in content.runs]
    head = ["run", "state", "time in iterations", "commit"]
    blocks += ["## Runs", "\n".join(_row(row) for row in (head, ["---"] * len(head), *runs))]
    blocks += [f"Versions: {version}." for version in content.versions]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _curves(curves: Sequence[CurvePoints]) -> list[str]:
    """Return a table of a few iterations for each measure with several evaluations."""
    blocks = []
    for curve in curves:
        head = ["iteration", *map(str, curve.epochs)]
        rows = [[name, *(number(value) for value in values)] for name, values in curve.values.items()]
        blocks.append(f"### {curve.metric}, by iteration: the mean of the seeds that got there")
        blocks.append("\n".join(_row(row) for row in (head, ["---"] * len(head), *rows)))
    return ["## Validation curves", *blocks] if blocks else []


def _samples(page: Comparison | None) -> list[str]:
    """Return the first prompts with each row's text after the last evaluation."""
    if page is None or not page.samples:
        return []
    blocks = []
    for sample in page.samples[:NUM_SAMPLES]:
        texts = [f"- **{text.name}**: {_short(text.text)}" for text in sample.texts]
        blocks.append("\n".join([f"> {_short(sample.prompt)}", "", *texts]))
    return ["## Samples", *blocks]


def _short(text: str) -> str:
    """Return a text in one line, cut to its first characters.

    >>> _short("One\\n two"), len(_short("x" * 900))
    ('One two', 241)
    """
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]}…"


def theirs(cell: Cell) -> str:
    """Return the published value as printed by its source, a note that none was found, or a dash."""
    if cell.published is None:
        return NOT_FOUND if cell.sought else "–"
    return _printed(cell.published)


def others(cell: Cell) -> str:
    return ", ".join(f"{_printed(value)}{WHO[value.by]}" for value in cell.others)


def _printed(value: Published) -> str:
    return f"{value.text} ± {value.error:g}" if value.error else value.text


def ours(cell: Cell) -> str:
    return "–" if cell.ours is None else with_error(cell.ours.mean, cell.ours.standard_error)


def over(cell: Cell) -> str:
    """Return a value's number of seeds and kind of error: "1 seed, ± over prompts"."""
    if cell.ours is None:
        return ""
    seeds = "1 seed" if cell.ours.num_runs == 1 else f"{cell.ours.num_runs} seeds"
    return f"{seeds}, ± over prompts" if cell.ours.over == "prompts" else seeds


def _source(value: Published) -> str:
    return f"{value.row}, {value.metric} {value.text}: {value.source} ({CERTAINTIES[value.certainty]})"


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
