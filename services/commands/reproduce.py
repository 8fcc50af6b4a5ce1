"""`whetstone reproduce NAME`: run a published table's rows from a pinned recipe, and write a page about it.

recipe ─▶ models and data found ─▶ plan ─▶ checks ─▶ `whetstone train` for each row and seed that is not done
                                                        └─ after each: reproduction.html and .md
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contracts.errors import InputError
from services.terminal.doing import doing

EPILOG = """The same command continues after an interruption; finished rows stay.

  whetstone reproduce --list                           the recipes; with --json as an array
  whetstone reproduce imdb                             all rows and seeds, from the hub
  whetstone reproduce imdb --small                     minutes on a CPU, with stand-ins: no reproduction
  whetstone reproduce imdb --rows ppo,nlpo --seeds 0 --models FOLDER --data FOLDER
  whetstone reproduce imdb --page                      only write the page of what is there"""


def run(argv: Sequence[str]) -> int:
    """List the recipes, or run one. Return 0 if all rows succeeded, else the first exit code that was not 0.

    Raises:
        InputError: an option is wrong, or a model or data set is missing; raised before anything starts.
    """
    arguments = _parser().parse_intermixed_args(list(argv))
    if arguments.list or arguments.recipe is None:
        if arguments.recipe is None and not arguments.list:
            raise InputError("expected a recipe's name; whetstone reproduce --list names them")
        return _list(as_json=arguments.json)
    if arguments.json:
        raise InputError(f"{arguments.recipe} --json: expected --list --json, which names the recipes")
    with doing("reading the recipe"):
        from services.reproduction.checks import check
        from services.reproduction.page import write_page
        from services.reproduction.places import find_places
        from services.reproduction.plan import SMALL_SEEDS, Asked, needed, plan
        from services.reproduction.recipe import read_recipe
        from services.reproduction.running import run_all
        from services.reproduction.stand_ins import small_places
        from services.runs.claim import make_writable

        recipe = read_recipe(arguments.recipe)
        default = f"runs/reproduce/{recipe.name}{'-small' if arguments.small else ''}"
        seeds = SMALL_SEEDS if arguments.small else recipe.seeds
        asked = Asked(
            Path(arguments.out or default).absolute(),
            seeds if arguments.seeds is None else _seeds(arguments.seeds),
            [name.strip() for name in arguments.rows.split(",") if name.strip()],
            arguments.overrides,
            arguments.small,
        )
    models, data = (Path(each) if each else None for each in (arguments.models, arguments.data))
    make_writable(asked.out)
    with doing("looking for models and data"):
        if asked.small:
            places = small_places(recipe, data, asked.out / "stand-ins")
        else:
            places = find_places(recipe, models, data, () if arguments.page else needed(recipe, asked))
    with doing("checking the rows"):
        steps, shown = plan(recipe, asked, places), plan(recipe, replace(asked, rows=()), places)
        check(shown)
    code = 0 if arguments.page else run_all(steps, lambda: write_page(recipe, asked, shown), here=asked.small)
    print("page     ", *write_page(recipe, asked, shown))
    return code


def _list(*, as_json: bool) -> int:
    from rich.table import Table

    from services.reproduction.recipe import read_recipe, recipe_names
    from services.terminal.screens import Screen

    recipes = {name: read_recipe(name) for name in recipe_names()}
    if as_json:
        words = ("title", "paper", "seeds", "hardware", "hours")
        listed = [
            {"name": name, "rows": list(each.rows)} | {word: getattr(each, word) for word in words}
            for name, each in recipes.items()
        ]
        print(json.dumps(listed, indent=1, ensure_ascii=False))
        return 0
    table = Table("recipe", "what", "rows", "seeds", "hardware", "expected hours", title_justify="left")
    for name, each in recipes.items():
        table.add_row(name, each.title, str(len(each.rows)), str(len(each.seeds)), each.hardware, each.hours)
    Screen(highlight=False).print(table)
    return 0


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: expected whole numbers, such as 0,1,2") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone reproduce",
        description="Run the rows of a published table from a pinned recipe, and compare.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", metavar="NAME", help="a recipe; --list names them")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of all rows")
    parser.add_argument("--list", action="store_true", help="name the recipes")
    parser.add_argument("--json", action="store_true", help="with --list: print an array of recipes")
    parser.add_argument("--small", action="store_true", help="stand-in models, two iterations")
    parser.add_argument("--rows", default="", metavar="A,B", help="default: all")
    parser.add_argument("--seeds", metavar="N,M", help="default: the recipe's; with --small: 0")
    parser.add_argument("--models", metavar="FOLDER", help="models by name, such as FOLDER/gpt2")
    parser.add_argument("--data", metavar="FOLDER", help="data by name, such as FOLDER/imdb")
    parser.add_argument("--out", metavar="FOLDER", help="default: runs/reproduce/NAME")
    parser.add_argument("--page", action="store_true", help="start nothing, only write the page")
    return parser
