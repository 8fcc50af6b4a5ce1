"""`whetstone crowd`: make pages on which people judge texts, and sum up their answers.

texts ─▶ crowd page ─┬▶ page.html ─▶ people ─▶ answers.csv ─┬▶ crowd aggregate ─▶ tables
                     └▶ key.csv ────────────────────────────┘
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.studies.crowdsourcing.answers import Vote, read_answers
from services.studies.crowdsourcing.pages import Kind, items_from, write_example, write_pages
from services.studies.crowdsourcing.questions import questions_for
from services.studies.crowdsourcing.results import likert_results, pairwise_results
from services.studies.crowdsourcing.tables import print_tables, write_tables
from services.terminal.visible import visible_json

PAGE_EPILOG = """FILE is a CSV file with the columns prompt, machine_completion, algorithm (for pairwise also:
prompt, choice_A, choice_B, choice_A_id, choice_B_id); or ALGORITHM=FILE.json with a run's predictions.

  whetstone crowd page likert --task commongen --predictions texts.csv --out pages
  whetstone crowd page pairwise --task imdb --out pages --num-prompts 50 \\
      --predictions ppo=runs/a/epoch_50_test_split_predictions.json nlpo=runs/b/evaluation_test.json
  whetstone crowd page likert --task xsum --out pages          an example, and its CSV file"""


def run(argv: Sequence[str]) -> int:
    """Make the pages, or sum up the answers. Return the exit code.

    Raises:
        InputError: a file can't be used, or an answer is invalid.
    """
    arguments = _parser().parse_args(list(argv))
    code: int = arguments.do(arguments)
    return code


def _page(arguments: argparse.Namespace) -> int:
    kind: Kind = arguments.kind
    questions = questions_for(arguments.task)
    out = Path(arguments.out)
    sources = arguments.predictions
    if not sources:
        sources = [str(write_example(kind, questions, out))]
        print(*sources)
    items = items_from(kind, sources, arguments.seed, arguments.num_prompts)
    name = f"{kind}-seed{arguments.seed}"
    title = "Which text is better?" if kind == "pairwise" else "How good are these texts?"
    for path in write_pages(kind, questions, items, out, name, title):
        print(path)
    return 0


def _aggregate(arguments: argparse.Namespace) -> int:
    answers = read_answers([Path(file) for file in arguments.files], [Path(file) for file in arguments.key])
    if not answers:
        raise InputError(f"{' '.join(arguments.files)}: the files hold no answers")
    votes = [answer for answer in answers if isinstance(answer, Vote)]
    ratings = [answer for answer in answers if not isinstance(answer, Vote)]
    tables = pairwise_results(votes) if votes else likert_results(ratings)
    text = json.dumps(tables, indent=1, ensure_ascii=False, allow_nan=False)
    if arguments.json:
        print(visible_json(text))
    else:
        print_tables(tables)
    if arguments.out is not None:
        write_tables(tables, text, Path(arguments.out))
    return 0


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
    page.add_argument("--task", required=True, help="chooses the questions; prompts: any text")
    page.add_argument("--predictions", nargs="+", metavar="FILE", help="files of texts; default: an example")
    page.add_argument("--out", required=True, metavar="FOLDER")
    page.add_argument("--seed", type=int, default=0, help="for order and sides; default: 0")
    page.add_argument("--num-prompts", type=_at_least_one, metavar="N", help="a random sample; default: all")
    page.set_defaults(do=_page)

    aggregate = commands.add_parser(
        "aggregate",
        help="sum up the answers",
        description="Means or win rates, agreement and tests, from the files that pages let download.",
    )
    aggregate.add_argument("files", nargs="+", metavar="ANSWERS.csv", help="or Mechanical Turk's batches")
    aggregate.add_argument("--key", nargs="+", default=[], metavar="FILE", help="the pages' key files")
    aggregate.add_argument("--json", action="store_true", help="print one JSON object")
    aggregate.add_argument("--out", metavar="FOLDER", help="write results.json and a CSV file for each table")
    aggregate.set_defaults(do=_aggregate)
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}, expected 1 or more")
    return value
