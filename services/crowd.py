"""`whetstone crowd`: pages on which people judge texts, and what their answers say.

texts ─▶ crowd page ─┬▶ page.html ─▶ people ─▶ answers.csv ─┬▶ crowd aggregate ─▶ tables
                     └▶ key.csv ────────────────────────────┘
"""

import argparse
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.crowdsourcing.answers import Vote, read_answers
from services.crowdsourcing.pages import Item, Kind, likert_items, pairwise_items, write_pages
from services.crowdsourcing.questions import Questions, questions_for
from services.crowdsourcing.results import likert_results, pairwise_results
from services.crowdsourcing.texts import example_csv, read_pairs, read_texts, some
from services.json_lines import write_atomically
from services.readable import number

PAGE_EPILOG = """FILE is a CSV file with the columns prompt, machine_completion, algorithm (for pairwise also:
prompt, choice_A, choice_B, choice_A_id, choice_B_id); or ALGORITHM=FILE.json, which a run has written.

  whetstone crowd page likert --task commongen --predictions texts.csv --out pages
  whetstone crowd page pairwise --task imdb --out pages --num-prompts 50 \\
      --predictions ppo=runs/a/epoch_50_test_split_predictions.json nlpo=runs/b/evaluation_test.json
  whetstone crowd page likert --task xsum --out pages          an example, and its CSV file"""
HEADS = {
    "means": "Means of texts, from 1 to 5",
    "agreement": "Agreement between people",
    "tests": "Differences between algorithms",
    "win_rates": "Comparisons won",
    "pairs": "Each two algorithms",
}
PROBABILITIES = ("p", "p_holm")
SMALLEST_P = 0.001


def run(argv: Sequence[str]) -> int:
    """The command; the exit code.

    Raises:
        InputError: a file can't be used, or an answer is none.
    """
    arguments = _parser().parse_args(list(argv))
    code: int = arguments.do(arguments)
    return code


def _page(arguments: argparse.Namespace) -> int:
    kind: Kind = arguments.kind
    questions = questions_for(arguments.task)
    out = Path(arguments.out)
    sources = arguments.predictions or [str(_write_example(kind, questions, out))]
    items = _items(kind, sources, arguments.seed, arguments.num_prompts)
    name = f"{kind}-seed{arguments.seed}"
    title = "Which text is better?" if kind == "pairwise" else "How good are these texts?"
    for path in write_pages(kind, questions, items, out, name, title):
        print(path)
    return 0


def _items(kind: Kind, sources: Sequence[str], seed: int, num_prompts: int | None) -> list[Item]:
    if kind == "pairwise":
        return pairwise_items(some(read_pairs(sources), num_prompts), seed)
    return likert_items(some(read_texts(sources), num_prompts), seed)


def _write_example(kind: Kind, questions: Questions, out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = write_atomically(out / f"{kind}-example.csv", example_csv(kind, questions))
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None
    print(path)
    return path


def _aggregate(arguments: argparse.Namespace) -> int:
    answers = read_answers([Path(file) for file in arguments.files], [Path(file) for file in arguments.key])
    if not answers:
        raise InputError(f"{' '.join(arguments.files)}: not one answer is filled in")
    votes = [answer for answer in answers if isinstance(answer, Vote)]
    ratings = [answer for answer in answers if not isinstance(answer, Vote)]
    tables = pairwise_results(votes) if votes else likert_results(ratings)
    text = json.dumps(tables, indent=1, ensure_ascii=False, allow_nan=False)
    if arguments.json:
        print(text)
    else:
        _print_tables(tables)
    if arguments.out is not None:
        _write_tables(tables, text, Path(arguments.out))
    return 0


def _write_tables(tables: Mapping[str, list[dict[str, Any]]], text: str, out: Path) -> None:
    """results.json, and a CSV file for each table that has rows."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "results.json", text)
        for name, rows in tables.items():
            file = io.StringIO()
            if rows:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
                write_atomically(out / f"{name}.csv", file.getvalue())
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None


def _print_tables(tables: Mapping[str, list[dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    for name, rows in tables.items():
        if not rows:
            continue
        table = Table(title=HEADS[name], title_justify="left")
        columns = [column for column in rows[0] if any(row[column] != "" for row in rows)]
        for column in columns:
            words = column.replace("num_", "").replace("_", " ")
            table.add_column(words, justify="left" if isinstance(rows[0][column], str) else "right")
        for row in rows:
            table.add_row(*(escape(_in_letters(column, row[column])) for column in columns))
        console.print(table)


def _in_letters(column: str, value: Any) -> str:
    """
    >>> _in_letters("p", 0.00002), _in_letters("p", 0.0416), _in_letters("p", None), _in_letters("mean", 3.25)
    ('< 0.001', '0.042', '–', '3.25')
    """
    if column in PROBABILITIES and value is not None:
        return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"
    return number(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone crowd", description="Let people judge texts, and see what their answers say."
    )
    commands = parser.add_subparsers(required=True, metavar="page | aggregate")

    page = commands.add_parser(
        "page",
        help="make the pages",
        description="Make a page on which people judge texts. It needs no server and sends nothing.",
        epilog=PAGE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    page.add_argument("kind", choices=("likert", "pairwise"), help="1 to 5 on two axes, or which of two")
    page.add_argument("--task", required=True, help="what is asked depends on it; prompts: any text")
    page.add_argument("--predictions", nargs="+", metavar="FILE", help="the texts; default: an example")
    page.add_argument("--out", required=True, metavar="FOLDER")
    page.add_argument("--seed", type=int, default=0, help="of the order and the sides; default 0")
    page.add_argument("--num-prompts", type=_at_least_one, metavar="N", help="drawn by chance; default all")
    page.set_defaults(do=_page)

    aggregate = commands.add_parser(
        "aggregate",
        help="sum up the answers",
        description="Means or win rates, agreement and tests, from the files that pages let download.",
    )
    aggregate.add_argument("files", nargs="+", metavar="ANSWERS.csv", help="also Mechanical Turk's batches")
    aggregate.add_argument("--key", nargs="+", default=[], metavar="FILE", help="the pages' key files")
    aggregate.add_argument("--json", action="store_true", help="print one JSON object")
    aggregate.add_argument("--out", metavar="FOLDER", help="results.json and a CSV file for each table")
    aggregate.set_defaults(do=_aggregate)
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}, expected 1 or more")
    return value
