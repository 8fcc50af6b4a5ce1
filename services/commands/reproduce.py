"""`whetstone reproduce NAME`: run a published table's rows from a pinned recipe, and write a page about it.

recipe ─▶ models and data found ─▶ plan ─▶ checks ─▶ `whetstone train` for each unfinished row and seed
                                                        └─ after each: reproduction.html and .md
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contracts.errors import InputError
from services.terminal.doing import doing
from services.terminal.options import names_in, seeds_in

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
        from services.runs.claim import make_writable
        from services.studies.reproduction.checks import check
        from services.studies.reproduction.page import write_page
        from services.studies.reproduction.places import find_places
        from services.studies.reproduction.plan import SMALL_SEEDS, Asked, needed, plan
        from services.studies.reproduction.recipe import read_recipe
        from services.studies.reproduction.running import run_all
        from services.studies.reproduction.stand_ins import small_places

        recipe = read_recipe(arguments.recipe)
        default = f"runs/reproduce/{recipe.name}{'-small' if arguments.small else ''}"
        seeds = SMALL_SEEDS if arguments.small else recipe.seeds
        request = Asked(
            Path(arguments.out or default).absolute(),
            seeds if arguments.seeds is None else seeds_in(arguments.seeds),
            names_in(arguments.rows),
            arguments.overrides,
            arguments.small,
        )
    models, data = (Path(folder) if folder else None for folder in (arguments.models, arguments.data))
    make_writable(request.out)
    with doing("looking for models and data"):
        if request.small:
            places = small_places(recipe, data, request.out / "stand-ins")
        else:
            places = find_places(recipe, models, data, () if arguments.page else needed(recipe, request))
    with doing("checking the rows"):
        steps, shown = plan(recipe, request, places), plan(recipe, replace(request, rows=()), places)
        check(shown)
    code = (
        0
        if arguments.page
        else run_all(steps, lambda: write_page(recipe, request, shown), here=request.small)
    )
    print("page     ", *write_page(recipe, request, shown))
    return code


def _list(*, as_json: bool) -> int:
    from rich.table import Table

    from services.studies.reproduction.recipe import read_recipe, recipe_names
    from services.terminal.screens import Screen

    recipes = {name: read_recipe(name) for name in recipe_names()}
    if as_json:
        words = ("title", "paper", "seeds", "hardware", "hours")
        listed = [
            {"name": name, "rows": list(recipe.rows)} | {word: getattr(recipe, word) for word in words}
            for name, recipe in recipes.items()
        ]
        print(json.dumps(listed, indent=1, ensure_ascii=False))
        return 0
    table = Table("recipe", "what", "rows", "seeds", "hardware", "expected hours", title_justify="left")
    for name, recipe in recipes.items():
        table.add_row(
            name, recipe.title, str(len(recipe.rows)), str(len(recipe.seeds)), recipe.hardware, recipe.hours
        )
    Screen(highlight=False).print(table)
    return 0


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
