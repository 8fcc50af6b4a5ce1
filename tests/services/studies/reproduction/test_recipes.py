"""The recipes that ship: their settings, and their published values beside the collection they come from."""

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from services.config.compose import choices_of, run_settings
from services.config.settings import RunSettings
from services.data.tasks.base import SPLITS
from services.studies.reproduction.places import Places, overrides_for
from services.studies.reproduction.published import published, values_of
from services.studies.reproduction.recipe import Recipe, read_recipe, recipe_names
from services.studies.reproduction.stand_in_rows import write_rows

COLLECTION = Path(__file__).parents[5] / "shared/spec/published.md"
NEEDS_COLLECTION = pytest.mark.skipif(not COLLECTION.is_file(), reason="the collection is not at hand")
GRUE = ("imdb", "commongen", "cnn_daily_mail", "totto", "narrative_qa", "iwslt2017", "daily_dialog")
A_LOL = ("helpful_harmless", "atomic", "reddit_upvoted", "reddit_downvoted", "faithdial")


@cache
def settings_of(recipe: str, row: str, folder: Path) -> RunSettings:
    """A row's settings, on made rows."""
    whole = read_recipe(recipe)
    data = {name: write_rows(folder / name, data_set.like or name) for name, data_set in whole.data.items()}
    chosen = whole.rows[row]
    experiment = [f"experiment={chosen.experiment}"] if chosen.experiment else []
    start = ["model.path=somewhere"] if chosen.start else []
    return run_settings(
        [*experiment, *whole.set, *chosen.set, *start, *overrides_for(whole, Places({}, data))]
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def told_rows(recipe: Recipe) -> list[str]:
    """A row of each kind: those of learning from data differ by their algorithm alone."""
    names = list(recipe.trained)
    return names[:1] if recipe.name in A_LOL else [name for name in names if "supervised" not in name]


def first_quick_others_long() -> list[Any]:
    """Each told row with its recipe; a row's settings take half a second of a core."""
    return [
        pytest.param(name, row, marks=[pytest.mark.long] * bool(place))
        for name in recipe_names()
        for place, row in enumerate(told_rows(read_recipe(name)))
    ]


def test_there_is_a_recipe_for_each_table() -> None:
    others = ("openrl_daily_dialog", "textworld", "gsm8k", "tldr")
    assert recipe_names() == sorted((*GRUE, *A_LOL, *others))


@pytest.mark.parametrize(("recipe", "row"), first_quick_others_long())
def test_a_row_is_a_run(recipe: str, row: str, rows: Path) -> None:
    run = settings_of(recipe, row, rows)
    names = {run.model.path, run.model.tokenizer, *(part.options.get("model") for part in run.reward)}
    assert names - {None} <= {*read_recipe(recipe).models}, "a model that the recipe does not name"


def test_every_row_has_an_experiment_that_ships() -> None:
    named = {row.experiment for name in recipe_names() for row in read_recipe(name).rows.values()}
    assert named - {None} <= set(choices_of("experiment"))
    assert len(named) > 60


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[pytest.mark.long] * bool(place)) for place, name in enumerate(GRUE)]
)
def test_grue_has_its_rows_and_nlpo_twice(recipe: str, rows: Path) -> None:
    recipe_rows = read_recipe(recipe).rows
    assert list(recipe_rows) == [
        *("zero-shot", "supervised", "ppo", "nlpo", "nlpo corrected"),
        *("supervised+ppo", "supervised+nlpo", "supervised+nlpo corrected"),
    ]
    shipped, corrected = (settings_of(recipe, row, rows).algorithm for row in ("nlpo", "nlpo corrected"))
    assert (shipped.compatibility, shipped.min_tokens_to_keep) == ("rl4lms", 100)  # type: ignore[attr-defined]
    assert (corrected.compatibility, corrected.min_tokens_to_keep) == ("none", 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name != "textworld"])
def test_made_rows_are_what_the_task_reads(recipe: str, rows: Path) -> None:
    task = settings_of(recipe, told_rows(read_recipe(recipe))[0], rows).task
    for split in SPLITS:
        assert len(task.first_prompts(split)) >= 8  # type: ignore[attr-defined]


def test_both_rows_of_tldr_draw_a_million_responses(rows: Path) -> None:
    for row in ("ppo", "rloo"):
        run = settings_of("tldr", row, rows)
        an_iteration = run.rollout.prompts_per_iteration * (run.group_size or 1)
        assert run.iterations * an_iteration == pytest.approx(1e6, rel=1e-3), row


@pytest.mark.parametrize("row", ["w2-o3-q4 ppo", "w2-o3-q4 rloo"])
def test_a_batch_of_textworld_has_256_rollouts(row: str, rows: Path) -> None:
    run = settings_of("textworld", row, rows)
    assert run.rollout.prompts_per_iteration * (run.group_size or 1) == 256


def test_made_rows_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = write_rows(tmp_path / "a", "imdb"), write_rows(tmp_path / "b", "imdb")
    assert (first / "train.jsonl").read_bytes() == (second / "train.jsonl").read_bytes()


def test_a_recipe_of_a_wrong_form_is_refused() -> None:
    whole = read_recipe("imdb").model_dump()
    for change, message in (
        ({"rows": {"a": {"before": "b"}}}, "before=b is not a row"),
        ({"rows": {"a": {"experiment": "imdb_ppo", "start": "b"}}}, "start=b is not a row above it"),
        ({"rows": {"a": {}}}, "expected either settings or before=ROW"),
        ({"measures": {"m": {}}}, "neither a key nor a note"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            build(Recipe, {**whole, **change}, where="recipe")
    with pytest.raises(InputError, match="did you mean 'imdb'"):
        read_recipe("imbd")


def test_each_published_value_belongs_to_a_cell_and_no_cell_has_two() -> None:
    for value in published():
        recipe = read_recipe(value.recipe)
        assert value.row in recipe.rows and value.metric in recipe.measures, value
        assert not recipe.rows[value.row].ours, value
        from_paper = [
            other for other in values_of(value.recipe, value.row, value.metric) if other.by == "paper"
        ]
        assert len(from_paper) <= 1, value
    assert len(published()) > 70


@NEEDS_COLLECTION
def test_each_published_value_is_that_of_the_collection() -> None:
    text = COLLECTION.read_text(encoding="utf-8")
    listed = {
        row["id"]: row for row in csv.DictReader(text.split("```csv\n")[1].split("```")[0].splitlines())
    }
    for value in published():
        if row := listed.get(value.place):
            error = float(row["pm"]) if row["pm"] else None
            assert (value.value, value.error, value.certainty) == (float(row["value"]), error, row["tag"]), (
                value
            )
            continue
        section, _, label = value.place.partition(":")
        lines = [line for line in section_of(text, section).splitlines() if label in line]
        digits = re.escape(value.text.removeprefix("0"))  # .489 there is 0.489 here
        assert any(re.search(rf"(?<![\d.])0?{digits}(?!\.?\d)", line) for line in lines), value


def section_of(text: str, number: str) -> str:
    """The text below the heading of that number, up to the next heading of its level or above."""
    level = "#" * (2 + number.count("."))
    match = re.search(rf"^{level} {re.escape(number)}\.? .*?(?=^#{{2,{len(level)}}} |\Z)", text, re.M | re.S)
    assert match, number
    return match[0]
