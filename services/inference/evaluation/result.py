"""An evaluation's result file and table."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.secrets.secret_values import hide
from services.runs.changes import error_of
from services.runs.claim import MAY_CHANGE
from services.runs.folder import RunFolder
from services.runs.json_lines import read_object
from services.runs.standard_errors import error_key, is_error
from services.terminal.readable import number
from services.terminal.screens import Screen


def output_file(
    output: str | None, folder: RunFolder | None, split: str, overrides: Sequence[str] = ()
) -> Path | None:
    """Return the file for the result, or None.

    Args:
        overrides: changes of the run's configuration. Without any, the result goes to the run's own file.

    Raises:
        InputError: the file can't be written, or holds a result that these overrides don't give.
    """
    if output is not None:
        path = Path(output)
    elif folder is not None:
        path = folder.path / f"evaluation_{split}.json"
    else:
        return None
    shaping = _shaping(overrides)
    if output is None and shaping and path.is_file() and (there := _overrides_in(path)) != _told(shaping):
        raise InputError(
            f"{path} holds the result {there}, and this one is {_told(shaping)}: give --output FILE for it, "
            "or remove that file"
        )
    if path.is_dir():
        raise InputError(f"--output {path}: is a folder; expected a file's name")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} can't be written: {path.parent} is missing or not writable; give --output")
    return path


def _overrides_in(file: Path) -> str:
    try:
        return _told(_shaping(read_object(file).get("overrides") or ()))
    except InputError:
        return "of a file that can't be read"


def _shaping(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that change numbers, without those for the share of a machine."""
    of_the_machine = tuple(f"{key}{end}" for key in MAY_CHANGE for end in "=.")
    return [override for override in overrides if not override.startswith(of_the_machine)]


def _told(overrides: Sequence[str]) -> str:
    """Return the overrides as a file stores them, without secrets and independent of order."""
    return f"with {' '.join(sorted(map(hide, overrides)))}" if overrides else "without overrides"


def print_table(
    result: Mapping[str, Any], output: Path | None, rows: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Print the metrics of an evaluation with their standard errors, and the file with its texts.

    Args:
        rows: the predictions, for standard errors missing in the metrics.
    """
    from rich.table import Table

    from services.runs.player_metrics import BASELINE, PLAYERS, of_player

    played = {player: numbers for player in PLAYERS if (numbers := of_player(player, result["metrics"]))}
    metrics = {key: value for key, value in result["metrics"].items() if not key.startswith(f"{BASELINE}/")}
    unscored = f", {result['num_unscored']} could not be scored" if result["num_unscored"] else ""
    terminal = Screen(highlight=False)
    terminal.print(f"{result['model']}, {result['split']}: {result['num_texts']} texts{unscored}")
    table = Table("metric", "value", "± standard error", *played)
    for column in (table.columns[1], *table.columns[3:]):
        column.justify = "right"
    for key, value in metrics.items():
        if is_error(key):
            continue
        others = [number(numbers[key]) if key in numbers else "" for numbers in played.values()]
        error = error_of(key, metrics, rows)
        table.add_row(key, number(value), "" if error is None else number(error), *others)
    terminal.print(table)
    if output is not None:
        terminal.print(f"every text with its scores: {output}", soft_wrap=True)


def print_tasks(result: Mapping[str, Any], output: Path | None) -> None:
    """Print lm-eval's result and its file."""
    from rich.table import Table

    terminal = Screen(highlight=False)
    terminal.print(f"{result['model']}, by lm-eval {result['lm_eval']}")
    table = Table("task and metric", "value", "± standard error", "questions")
    for column in table.columns[1:]:
        column.justify = "right"
    metrics = result["metrics"]
    for key, value in metrics.items():
        if not is_error(key):
            error = metrics.get(error_key(key))
            count = result["num_questions"].get(key.partition("/")[0], "")
            table.add_row(key, number(value), "" if error is None else number(error), str(count))
    terminal.print(table)
    if output is not None:
        terminal.print(f"written to {output}", soft_wrap=True)
