"""Write a benchmark's tables as Markdown, CSV and a page."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.runs.json_lines import write_atomically
from services.runs.spreadsheets import as_text
from services.studies.benchmarks.benchmark import Benchmark
from services.studies.benchmarks.table import Cell, Estimate, RunResult, TaskTable, tables
from services.terminal import readable
from services.terminal.readable import number
from services.terminal.templates import templates_in

CSV_COLUMNS = (
    "task",
    "algorithm",
    "metric",
    "num_runs",
    "mean",
    "standard_error",
    "before_mean",
    "before_standard_error",
)
ON_THE_WAY = ("validation/", "training/")  # metrics of the whole run
PLOT_WIDTH, PLOT_ROW, PLOT_EDGE = 170, 9, 8
NARROW = 96  # width of a plot with one algorithm


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of one algorithm in a metric's plot: its start, its mean, and one standard error around it."""

    color: int
    y: float
    before: float | None
    low: float
    mean: float
    high: float


def write_tables(benchmark: Benchmark, results: Sequence[RunResult], out: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.html into `out`; NAME is the benchmark's name."""
    task_tables, name = tables(results), benchmark.name
    texts = {
        f"{name}.md": to_markdown(benchmark, task_tables, results),
        f"{name}.csv": to_csv(task_tables),
        f"{name}.html": to_html(benchmark, task_tables, results, out),
    }
    return [write_atomically(out / name, text) for name, text in texts.items()]


def with_error(value: Estimate) -> str:
    """Format an estimate with its standard error.

    >>> with_error(Estimate(0.61234, 0.0041, 3)), with_error(Estimate(0.61234, None, 1))
    ('0.6123 ± 0.0041', '0.612')
    """
    return readable.with_error(value.mean, value.standard_error)


def to_markdown(benchmark: Benchmark, task_tables: Sequence[TaskTable], results: Sequence[RunResult]) -> str:
    """Return a table for each task, with the benchmark's rows."""
    note = f" {benchmark.note}" if benchmark.note else ""
    blocks = [
        f"# {benchmark.title}",
        f"Test split, mean ± standard error over seeds. Before training in brackets.{note}",
    ]
    for table in task_tables:
        blocks.append(f"## {table.task}")
        blocks += [_markdown_table(benchmark, table, metrics) for _, metrics in groups(benchmark, table)]
        blocks += [] if table.cells else ["No run has finished yet."]
    open_runs = [f"- {result.run.job.run_name}: {result.state}" for result in results if not result.after]
    if open_runs:
        blocks += ["## Runs that are not in the tables", "\n".join(open_runs)]
    return "\n\n".join(blocks) + "\n"


def groups(benchmark: Benchmark, table: TaskTable) -> list[tuple[str, list[str]]]:
    """Return a task's metrics in groups with headings; whole runs' apart if algorithms are rows."""
    if benchmark.rows == "metrics":
        return [("", list(table.cells))] if table.cells else []
    apart = [metric for metric in table.cells if metric.startswith(ON_THE_WAY)]
    together = [metric for metric in table.cells if metric not in apart]
    return [(head, metrics) for head, metrics in (("", together), ("on the way", apart)) if metrics]


def to_csv(task_tables: Sequence[TaskTable]) -> str:
    """Return a line for each task, algorithm and metric, with all digits; unknown values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in task_tables:
        for metric, cells in table.cells.items():
            for algorithm, cell in cells.items():
                before = (cell.before.mean, cell.before.standard_error) if cell.before else (None, None)
                after = cell.after
                values = (after.num_runs, after.mean, after.standard_error, *before)
                writer.writerow([*map(as_text, (table.task, algorithm, metric)), *values])
    return file.getvalue()


def to_html(
    benchmark: Benchmark, task_tables: Sequence[TaskTable], results: Sequence[RunResult], out: Path
) -> str:
    """Return a self-contained page with links to the runs' reports."""
    environment = templates_in(Path(__file__).parent, filters={"number": number, "with_error": with_error})
    return environment.get_template("page.html.j2").render(
        benchmark=benchmark,
        tables=task_tables,
        results=results,
        links={
            result.run.job.run_name: f"{result.run.job.run_name}/report.html"
            for result in results
            if (out / result.run.job.run_name / "report.html").exists()
        },
        num_finished=sum(bool(result.after) for result in results),
        num_seeds=len({result.run.seed for result in results}),
        algorithms=list(dict.fromkeys(name for table in task_tables for name in table.algorithms)),
        groups=groups,
        marks=marks,
        plot=(PLOT_WIDTH, PLOT_ROW),
        narrow=NARROW,
        runs=_runs,
    )


def marks(table: TaskTable, metric: str, width: int = PLOT_WIDTH) -> list[Mark]:
    """Return the marks of a metric's plot: a line for each algorithm, all on one scale."""
    cells = table.cells[metric]
    values = [value for cell in cells.values() for value in _shown(cell)]
    low, high = min(values), max(values)
    extent = (high - low) or 1.0

    def x(value: float) -> float:
        middle = 0.5 if high == low else (value - low) / extent
        return round(PLOT_EDGE + middle * (width - 2 * PLOT_EDGE), 1)

    placed = []
    for row, algorithm in enumerate(table.algorithms):
        if (cell := cells.get(algorithm)) is not None:
            after, error = cell.after, cell.after.standard_error or 0.0
            before = x(cell.before.mean) if cell.before else None
            ends = (x(after.mean - error), x(after.mean), x(after.mean + error))
            placed.append(Mark(row, (row + 0.5) * PLOT_ROW, before, *ends))
    return placed


def _shown(cell: Cell) -> list[float]:
    error = cell.after.standard_error or 0.0
    before = [cell.before.mean] if cell.before else []
    return [cell.after.mean - error, cell.after.mean + error, *before]


def _markdown_table(benchmark: Benchmark, table: TaskTable, metrics: Sequence[str]) -> str:
    heads = [f"{name} ({_runs(*table.num_runs[name])})" for name in table.algorithms]
    grid = [["metric", *heads]]
    for metric in metrics:
        cells = table.cells[metric]
        texts = (_in_words(cells.get(name), table.num_runs[name][0]) for name in table.algorithms)
        grid.append([metric, *texts])
    if benchmark.rows == "algorithms":
        grid = [list(row) for row in zip(*grid, strict=True)]
        grid[0][0] = "algorithm"
    head, *rows = grid
    return "\n".join(map(_row, [head, ["---", *["--:"] * (len(head) - 1)], *rows]))


def _in_words(cell: Cell | None, num_runs: int) -> str:
    if cell is None:
        return "–"
    before = f" ({number(cell.before.mean)})" if cell.before else ""
    fewer = f" in {_runs(cell.after.num_runs, cell.after.num_runs)}" if cell.after.num_runs < num_runs else ""
    return with_error(cell.after) + before + fewer


def _runs(finished: int, planned: int) -> str:
    return (
        f"{finished} run{'s' * (finished != 1)}" if finished == planned else f"{finished} of {planned} runs"
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
