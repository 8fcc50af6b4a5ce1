"""Recipes: what a table of a paper needs to be run again, one YAML file each in conf/recipe/."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator

import conf
from contracts.errors import InputError, did_you_mean
from contracts.settings import Integers, Settings, Strings, build

FOLDER = Path(conf.__file__).parent / "recipe"


class Measure(Settings):
    """One column of the table. Example: `Measure(key="lexical/bleu", factor=100)` shows 0.061 as 6.1."""

    key: str | None = None  # name among an evaluation's metrics; None: not measurable here, and note says why
    factor: float = 1.0  # converts our scale to the published one
    better: Literal["up", "down", "neither"] = "up"
    split: Literal["val", "test"] = "test"
    sought: bool = False  # published values were searched for; then an empty cell says "not found"
    note: str = ""


class Row(Settings):
    """One line of the table: a training run, or another row's model before its training.

    Example: `Row(experiment="imdb_nlpo", set=("algorithm.min_tokens_to_keep=1",))`, and `Row(before="ppo")`.
    """

    experiment: str | None = None
    set: Strings = ()  # overrides, after the recipe's
    before: str | None = None  # the row whose first evaluation this is; nothing is run for it
    start: str | None = None  # the row whose model this run begins with, of the same seed
    online: bool = False  # it learns from its own texts, in a recipe whose others learn from annotated data
    ours: bool = False  # nobody has published such a row
    sought: bool = True  # published values were searched for, as each measure says; False: not for this row
    note: str = ""


class Model(Settings):
    """A model that the recipe's settings name, and where it comes from."""

    where: str  # where people get it
    on_hub: bool = True
    kind: Literal["causal", "seq2seq", "classifier"] = "causal"  # kind of its stand-in
    labels: int = 2  # number of labels of a classifier's stand-in
    sha256: Mapping[str, str] = Field(default_factory=dict)  # digests of its files, if they are known


class Data(Settings):
    """A data set: a folder of that name under --data, and the setting that takes it."""

    where: str
    on_hub: bool = True
    key: str = "task.data_files"
    file: str = ""  # file in the folder; empty: the folder itself
    otherwise: Strings = ()  # overrides if no folder is given
    like: str = ""  # the stand-in's rows, if they are another data set's
    sha256: Mapping[str, str] = Field(default_factory=dict)


class Annotation(Settings):
    """Scoring of the data that the rows learn from, by `whetstone annotate`.

    The reference is a model, or the model of a row that is trained on the rewards alone.
    """

    experiment: str
    model: str | None = None
    row: str | None = None
    set: Strings = ()
    small: Strings = ()  # options of values, with --small

    @model_validator(mode="after")
    def _one_reference(self) -> Self:
        if (self.model is None) == (self.row is None):
            raise ValueError("expected either model or row")
        return self


class Recipe(Settings):
    """A reproduction, from its settings to its columns.

    Example: `read_recipe("imdb").rows["nlpo"].experiment == "imdb_nlpo"`
    """

    name: str
    title: str
    paper: str
    hardware: str
    hours: str  # duration of one seed of all rows, and how it is known
    seeds: Integers
    set: Strings = ()  # overrides of every row
    measures: dict[str, Measure]
    rows: dict[str, Row]
    models: dict[str, Model]
    data: dict[str, Data] = Field(default_factory=dict)
    annotation: Annotation | None = None
    differs: Strings = ()  # differences from the paper, one sentence each
    notes: Strings = ()
    small: Strings = Field(default=())  # overrides of every row of --small

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        seen = set[str]()
        for name, row in self.rows.items():
            if (row.before is None) == (row.experiment is None and not row.set):
                raise ValueError(f"rows.{name}: expected either settings or before=ROW")
            for other in filter(None, (row.start,)):
                if other not in seen:
                    raise ValueError(f"rows.{name}: start={other} is not a row above it")
            if row.before is not None and row.before not in self.rows:
                raise ValueError(f"rows.{name}: before={row.before} is not a row")
            seen.add(name)
        unexplained = [
            name for name, measure in self.measures.items() if measure.key is None and not measure.note
        ]
        if unexplained:
            raise ValueError(f"measures.{unexplained[0]}: has neither a key nor a note")
        return self

    @property
    def trained(self) -> dict[str, Row]:
        """Return the rows for which something is run."""
        return {name: row for name, row in self.rows.items() if row.before is None}


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def read_recipe(name: str) -> Recipe:
    """Read conf/recipe/NAME.yaml.

    Raises:
        InputError: there is no such recipe, or its file is wrong.
    """
    if name not in recipe_names():
        raise InputError(f"{name}: there is no such recipe{did_you_mean(name, recipe_names())}")
    says: Any = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    if not isinstance(says, Mapping):
        raise InputError(f"conf/recipe/{name}.yaml: expected keys and values")
    return build(Recipe, {"name": name, **says}, where=f"recipe {name}")
