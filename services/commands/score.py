"""`whetstone score`: compute a metric or reward over JSON Lines files, without training and Ray."""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.scores import MetricValue
from services.inference.grading.sample_files import read_samples
from services.inference.grading.values import Scored, check_needs, find_grader, metric_values, reward_values
from services.terminal.doing import doing

LONG = 1e9  # a number from here on has too many digits for a column


def run(argv: Sequence[str]) -> int:
    """Print the values. Return the exit code.

    Raises:
        InputError: a name or option is unknown, a file can't be used, or a sample can't be scored.
    """
    arguments = _parser().parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # only values go to stdout, and a grader may print
        scored = _scored(arguments)
    if arguments.json:
        shown: dict[str, Any] = {k: {"corpus": v.corpus, "rows": v.rows} for k, v in scored.values.items()}
        if scored.grades is not None:
            next(iter(shown.values()))["grades"] = scored.grades
        print(json.dumps(shown))
    else:
        _print_table(scored.values)
    return 0


def _scored(arguments: argparse.Namespace) -> Scored:
    kind, part = find_grader(arguments.name, _options(arguments.option), arguments.reward)
    samples = read_samples(Path(arguments.predictions), arguments.references and Path(arguments.references))
    check_needs(kind, part, samples)
    with doing(f"computing {kind} {part.label} of {len(samples)} texts"):
        return reward_values(part, samples) if kind == "reward" else Scored(metric_values(part, samples))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone score", description="Compute a metric or a reward over JSON Lines files."
    )
    parser.add_argument("name", metavar="NAME", help="metric, reward, package.module:Class, or FILE.py:NAME")
    parser.add_argument(
        "--predictions",
        required=True,
        metavar="FILE",
        help='lines {"prediction": "…"}; prompt, meta, group optional',
    )
    parser.add_argument("--references", metavar="FILE", help='lines {"references": ["…"]}, in the same order')
    parser.add_argument("--reward", action="store_true", help="the reward, if a metric has the same name")
    parser.add_argument("--json", action="store_true", help="print JSON, every row included")
    parser.add_argument(
        "--option",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="options of the metric or reward",
    )
    return parser


def _options(texts: Sequence[str]) -> dict[str, Any]:
    import yaml  # types values as configuration files do: 3 is a number, true a boolean

    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--option {text}: expected KEY=VALUE, such as min_tokens=10")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"--option {text}: the value is not YAML; quote it: {key}='\"…\"'") from None
    return options


def _print_table(values: Mapping[str, MetricValue]) -> None:
    from rich.table import Table

    from services.terminal.screens import Screen

    table = Table("", "all samples", "std", "lowest", "highest", "samples")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, value in values.items():
        rows = value.rows
        measured = (statistics.pstdev(rows), min(rows), max(rows)) if rows else ()
        spread = [*map(_shown, measured), str(len(rows))] if rows else []
        table.add_row(key, _shown(value.corpus), *spread)
    Screen().print(table)


def _shown(number: float) -> str:
    """Return the number as a short text, because a cut number looks like another number.

    >>> _shown(0.5), _shown(-12345.678), _shown(7e300)
    ('0.5000', '-12345.6780', '7e+300')
    """
    return f"{number:.4f}" if abs(number) < LONG else f"{number:.4g}"
