"""Page of a reproduction, as HTML and as Markdown: the table, how it was made, curves and samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services import report
from services.comparison.groups import FEWEST, read_groups
from services.comparison.page import Page as Comparison
from services.comparison.page import gather
from services.report.marked import breakable
from services.reproduction.plan import Asked, Step
from services.reproduction.published import CERTAINTIES, NOT_FOUND, Published, published
from services.reproduction.recipe import Recipe
from services.reproduction.results import Cell, CurvePoints, Line, Started, curves_of, lines_of, started
from services.reproduction.verdict import MEANINGS
from services.runs.json_lines import write_atomically
from services.terminal.readable import number, with_error

NAME = "reproduction"
IS_SMALL = (
    "These numbers are no reproduction: --small trains tiny untrained stand-ins for minutes, to try every "
    "column, metric and table."
)
EXACT = (
    "A published value without an error counts as exact, apart from its rounding. Its spread is not known, "
    "so a verdict of below or above is firmer than it should be."
)
WHO = {"paper": "", "earlier": " (earlier)", "log": " (log)", "outsider": ""}
ARROWS = {"up": "↑", "down": "↓", "neither": ""}
NUM_COLOURS = 6
NUM_SAMPLES, MOST_LETTERS = 2, 240  # in the Markdown page


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that the page shows."""

    recipe: Recipe
    asked: Asked
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
        """Return the settings of these runs that are not the recipe's."""
        from services.reproduction.plan import SMALL

        return [
            *(SMALL if self.asked.small else ()),
            *(self.recipe.small if self.asked.small else ()),
            *self.asked.overrides,
        ]


def write_page(recipe: Recipe, asked: Asked, steps: Sequence[Step]) -> list[Path]:
    """Write reproduction.html and reproduction.md beside the runs; return their paths."""
    asked.out.mkdir(parents=True, exist_ok=True)
    content = gathered(recipe, asked, steps)
    texts = {f"{NAME}.html": to_html(content), f"{NAME}.md": to_markdown(content)}
    return [write_atomically(asked.out / name, text) for name, text in texts.items()]


def gathered(recipe: Recipe, asked: Asked, steps: Sequence[Step]) -> Content:
    folders = [step.folder for step in steps if step.command == "train" and step.folder.has_results()]
    return Content(
        recipe,
        asked,
        lines_of(recipe, steps),
        started(steps),
        gather(read_groups(folders)) if len(folders) >= FEWEST else None,
        [each for each in published() if each.recipe == recipe.name],
        curves_of(recipe, steps),
    )


def to_html(content: Content) -> str:
    """Return a page that needs no other file."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(report.__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "breakable": breakable}
    return environment.get_template("reproduction.html.j2").render(
        content=content,
        recipe=content.recipe,
        small=IS_SMALL if content.asked.small else "",
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
    """Return the same facts as text: of curves a few points, of samples two."""
    recipe = content.recipe
    blocks = [f"# {recipe.title}"]
    blocks += [f"**{IS_SMALL}**"] if content.asked.small else []
    blocks.append(
        f"{recipe.paper}. Recipe `{recipe.name}`, seeds {', '.join(map(str, content.asked.seeds))}, "
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
        blocks.append("\n".join(_row(each) for each in (head, ["---"] * len(head), *rows)))
    verdicts = {cell.verdict for line in content.lines for cell in line.cells.values()}
    blocks.append("\n".join(f"- **{name}**: {MEANINGS[name]}" for name in MEANINGS if name in verdicts))
    blocks.append(EXACT)
    blocks += _curves(content.curves) + _samples(content.comparison)
    blocks += ["## What differs from the paper", _list(recipe.differs)]
    blocks += ["Settings that these runs changed:", _list([f"`{each}`" for each in content.changed])] * bool(
        content.changed
    )
    blocks += [_list(recipe.notes)] * bool(recipe.notes)
    blocks += ["## Sources", _list([_source(each) for each in content.sources]) or "No value was found."]
    runs = [[run.name, run.state, run.elapsed, ", ".join(run.commits) or "–"] for run in content.runs]
    head = ["run", "state", "time in iterations", "commit"]
    blocks += ["## Runs", "\n".join(_row(each) for each in (head, ["---"] * len(head), *runs))]
    blocks += [f"Versions: {each}." for each in content.versions]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _curves(curves: Sequence[CurvePoints]) -> list[str]:
    """Return a table of a few iterations for each measure that was evaluated more than once."""
    blocks = []
    for curve in curves:
        head = ["iteration", *map(str, curve.epochs)]
        rows = [[name, *(number(value) for value in values)] for name, values in curve.values.items()]
        blocks.append(f"### {curve.metric}, by iteration: the mean of the seeds that got there")
        blocks.append("\n".join(_row(each) for each in (head, ["---"] * len(head), *rows)))
    return ["## Validation curves", *blocks] if blocks else []


def _samples(page: Comparison | None) -> list[str]:
    """Return the first prompts with each row's text after the last evaluation."""
    if page is None or not page.samples:
        return []
    blocks = []
    for sample in page.samples[:NUM_SAMPLES]:
        texts = [f"- **{each.name}**: {_short(each.text)}" for each in sample.texts]
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
    """Return the published value as its source prints it, or that it was looked for in vain, or a dash."""
    if cell.published is None:
        return NOT_FOUND if cell.sought else "–"
    return _printed(cell.published)


def others(cell: Cell) -> str:
    return ", ".join(f"{_printed(each)}{WHO[each.by]}" for each in cell.others)


def _printed(value: Published) -> str:
    return f"{value.text} ± {value.error:g}" if value.error else value.text


def ours(cell: Cell) -> str:
    return "–" if cell.ours is None else with_error(cell.ours.mean, cell.ours.standard_error)


def over(cell: Cell) -> str:
    """Return how many seeds a value has, and what its error is over: "1 seed, ± over prompts"."""
    if cell.ours is None:
        return ""
    seeds = "1 seed" if cell.ours.num_runs == 1 else f"{cell.ours.num_runs} seeds"
    return f"{seeds}, ± over prompts" if cell.ours.over == "prompts" else seeds


def _source(each: Published) -> str:
    return f"{each.row}, {each.metric} {each.text}: {each.source} ({CERTAINTIES[each.certainty]})"


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
