"""Print the tables of people's judgements, or write them as JSON and CSV files."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.runs.json_lines import write_atomically
from services.runs.spreadsheets import as_text
from services.terminal.readable import number

HEADS = {
    "means": "Means of texts, from 1 to 5",
    "agreement": "Agreement between people",
    "tests": "Differences between algorithms",
    "win_rates": "Comparisons won",
    "pairs": "Each two algorithms",
}
PROBABILITIES = ("p", "p_holm")
SMALLEST_P = 0.001


def write_tables(tables: Mapping[str, list[dict[str, Any]]], text: str, out: Path) -> None:
    """Write results.json, and a CSV file for each table that has rows.

    Raises:
        InputError: `out` can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "results.json", text)
        for name, rows in tables.items():
            file = io.StringIO()
            if rows:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows({column: as_text(cell) for column, cell in row.items()} for row in rows)
                write_atomically(out / f"{name}.csv", file.getvalue())
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None


def print_tables(tables: Mapping[str, list[dict[str, Any]]]) -> None:
    """Print each table that has rows."""
    from rich.table import Table

    from services.terminal.screens import Screen

    console = Screen(highlight=False)
    for name, rows in tables.items():
        if not rows:
            continue
        table = Table(title=HEADS[name], title_justify="left")
        columns = [column for column in rows[0] if any(row[column] != "" for row in rows)]
        for column in columns:
            words = column.replace("num_", "").replace("_", " ")
            table.add_column(words, justify="left" if isinstance(rows[0][column], str) else "right")
        for row in rows:
            table.add_row(*(_in_letters(column, row[column]) for column in columns))
        console.print(table)


def _in_letters(column: str, value: Any) -> str:
    """Format a value for the screen.

    >>> _in_letters("p", 0.00002), _in_letters("p", 0.0416), _in_letters("p", None), _in_letters("mean", 3.25)
    ('< 0.001', '0.042', '–', '3.25')
    """
    if column in PROBABILITIES and value is not None:
        return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"
    return number(value)
