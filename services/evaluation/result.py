"""Result of an evaluation: the file for it, and its table."""

import os
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal

from contracts.errors import InputError
from services.runs.folder import RunFolder
from services.terminal.readable import number


def output_file(asked: str | None, folder: RunFolder | None, split: str) -> Path | None:
    """Return the file for the result, or None.

    Raises:
        InputError: the file can't be written.
    """
    if asked is not None:
        path = Path(asked)
    elif folder is not None:
        path = folder.path / f"evaluation_{split}.json"
    else:
        return None
    if path.is_dir():
        raise InputError(f"--output {path}: is a folder; expected a file's name")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} can't be written: {path.parent} is missing or not writable; give --output")
    return path


def print_table(result: dict[str, Any], output: Path | None) -> None:
    """Print the metrics of an evaluation, and the file with its texts."""
    from rich.table import Table

    from services.loop.baselines import BASELINE, PLAYERS, of_player

    played = {player: own for player in PLAYERS if (own := of_player(player, result["metrics"]))}
    metrics = {key: value for key, value in result["metrics"].items() if not key.startswith(f"{BASELINE}/")}
    error = metrics.pop("reward/standard_error", None)
    unscored = f", {result['num_unscored']} could not be scored" if result["num_unscored"] else ""
    terminal = Terminal(highlight=False)
    terminal.print(
        f"{result['model']}, {result['split']}: {result['num_texts']} texts{unscored}", markup=False
    )
    table = Table("metric", "value", "± standard error", *played)
    for column in (table.columns[1], *table.columns[3:]):
        column.justify = "right"
    for key, value in metrics.items():
        others = [number(own[key]) if key in own else "" for own in played.values()]
        table.add_row(key, number(value), number(error) if key == "reward/mean" else "", *others)
    terminal.print(table)
    if output is not None:
        terminal.print(f"every text with its scores: {output}", markup=False, soft_wrap=True)
