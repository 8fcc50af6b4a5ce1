"""`whetstone import-rl4lms FILE.yml`: translate an RL4LMs configuration into an experiment."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from contracts.secrets.redaction import redact
from contracts.secrets.secret_values import HIDDEN, is_secret
from services.studies.rl4lms.experiment import read_configuration, to_yaml
from services.studies.rl4lms.findings import Findings

WIDE = 1000  # width of output to a file or a pipe


def run(argv: Sequence[str]) -> int:
    """Write the experiment and print each key's translation. Return the exit code.

    Raises:
        InputError: the file is not an RL4LMs configuration, or the experiment's file exists.
    """
    arguments = _parser().parse_args(argv)
    source = Path(arguments.file)
    target = Path(arguments.output or f"{source.stem}.yaml")
    if target.resolve() == source.resolve():
        raise InputError(f"{target} is the input file; --output names another for the experiment")
    if target.is_dir():
        raise InputError(f"--output {target}: is a folder; expected the name of a file")
    if target.exists() and not arguments.force:
        raise InputError(f"{target} exists; --output names another file, --force overwrites it")
    if not target.parent.is_dir():
        raise InputError(f"--output {target}: there is no folder {target.parent}")
    findings = read_configuration(source, compat=arguments.compat, train_rows=arguments.train_rows)
    text = to_yaml(findings, f"RL4LMs' {source.name}, by whetstone import-rl4lms.")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {target}: can't be written: {error.strerror}") from None
    _print(findings, target)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone import-rl4lms", description="Turn an RL4LMs configuration into an experiment."
    )
    parser.add_argument("file", metavar="FILE.yml", help="RL or supervised")
    parser.add_argument(
        "--output", metavar="FILE.yaml", help="the experiment; else <name>.yaml in this folder"
    )
    parser.add_argument(
        "--compat", action="store_true", help="compute as RL4LMs does, even where it is known to be wrong"
    )
    parser.add_argument(
        "--train-rows", type=_count, metavar="NUMBER", help="examples in a supervised file's training data"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 1 or more")
    return int(text)


def _print(findings: Findings, target: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    from services.terminal.screens import Screen

    console = Screen(highlight=False, markup=True)
    if not console.is_terminal:  # never break a key in a file
        console = Screen(highlight=False, markup=True, width=WIDE)
    for number, text in enumerate(findings.warnings, start=1):
        console.print(f"[yellow]{number}.[/yellow] {escape(redact(text))}", soft_wrap=not console.is_terminal)
    table = Table("RL4LMs", "says", "Whetstone", "has")
    for column in table.columns:
        column.overflow = "fold"
    for row in findings.rows:
        here = escape(row.target) if row.target else "[dim]left out[/dim]"
        source_value, value = (
            HIDDEN if is_secret(row.source) and text else redact(text)
            for text in (row.source_value, row.value)
        )
        table.add_row(escape(row.source), escape(source_value), here, escape(value))
    console.print(table)
    if findings.warnings:
        console.print(f"{len(findings.warnings)} warnings stand above the table.")
    console.print(f"\n{target}: whetstone train experiment={target}", soft_wrap=True, markup=False)
