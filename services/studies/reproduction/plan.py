"""Plan a reproduction's steps: a training run for each row and seed, with annotations between them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from contracts.errors import InputError, did_you_mean
from services.config.compose import compose, experiment
from services.config.override_words import parse
from services.runs.folder import RunFolder
from services.studies.benchmarks.plan import PlannedRun, is_finished, quoted
from services.studies.reproduction.annotation_overrides import for_annotation, model_of
from services.studies.reproduction.places import Places, overrides_for, replaced, texts_in
from services.studies.reproduction.recipe import Recipe
from services.training.train.sweep import Job

# Options of a run of minutes on a CPU; a recipe's `small` overrides these.
SMALL = (
    "cluster=laptop",
    "iterations=2",
    "evaluate_every=0",
    "save_every=0",
    "tracking.enabled=false",
    "rollout.engine=transformers",
    "rollout.num_threads=1",
    "rollout.prompts_per_iteration=8",
    "rollout.min_tokens=0",
    "rollout.max_tokens=16",
    "evaluation.max_tokens=16",
    "evaluation.min_tokens=0",
    "evaluation.num_prompts=8",
    "algorithm.minibatch_size=8",
    "learner.num_threads=1",
)
SMALL_ANNOTATION = (
    "rollout.engine=transformers",
    "rollout.max_tokens=16",
    "learner.num_threads=1",
)
SMALL_VALUES = (
    "value.num_prompts=8",
    "value.num_epochs=2",
    "value.num_beams=1",
    "value.max_value=null",  # with a bound, so short a training stays at its half, above all replies' rewards
)
SMALL_SEEDS = (0,)


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a reproduction: a row's training run, or an annotation.

    Example: `Step("train", "ppo", 0, Job(("experiment=imdb_ppo", …), "ppo-seed0", Path("runs/…/ppo-seed0")))`
    """

    command: Literal["train", "annotate"]
    row: str  # for an annotation: the row that needs it
    seed: int
    job: Job

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.job.folder)

    def is_done(self) -> bool:
        """Return whether the step is done; the same command resumes an unfinished one."""
        if self.command == "annotate":
            needed = "value/values.parquet" if "value=true" in self.job.overrides else "annotated.parquet"
            return (self.job.folder / needed).is_file()
        return self.folder.config_file.exists() and is_finished(self.folder, _num_iterations(self.job))

    def begins_with(self, other: "Step") -> bool:
        """Return whether this step reads the other's model or annotated data."""
        theirs = str(other.job.folder)
        return any(f'="{theirs}/' in text or text.endswith(f'="{theirs}"') for text in self.job.overrides)


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line's choice. Example: `Asked(Path("runs/reproduce/imdb"), (0, 1))`"""

    out: Path
    seeds: Sequence[int]
    rows: Sequence[str] = ()  # empty: all
    overrides: Sequence[str] = ()
    small: bool = False


def plan(recipe: Recipe, options: Asked, places: Places) -> list[Step]:
    """Return all steps in a possible order, seed by seed.

    Raises:
        InputError: a row is unknown, or an override can't be read.
    """
    for name in options.rows:
        if name not in recipe.rows:
            raise InputError(f"--rows: {name} is not a row of {recipe.name}{did_you_mean(name, recipe.rows)}")
    wanted = _with_needed(recipe, options.rows or list(recipe.rows))
    steps: list[Step] = []
    for seed in options.seeds:
        annotated = None if all(recipe.rows[name].online for name in wanted) else recipe.annotation
        if annotated:
            first = annotated.model and model_of(options.overrides, annotated.model)
            steps.append(_annotation(recipe, options, places, seed, reference=first))
        for name in recipe.trained:
            if name in wanted:
                steps.append(_training(recipe, options, places, name, seed))
                if annotated and name == annotated.row:
                    model = str(_model_of(recipe, options.out, name, seed))
                    steps.append(_annotation(recipe, options, places, seed, reference=model))
    return steps


def needed(recipe: Recipe, options: Asked) -> set[str]:
    """Return the chosen rows' models and data sets.

    A model is needed if a row's settings name it; a data set, unless an override replaces it.
    """
    first = replace(options, seeds=options.seeds[:1])
    texts: set[str] = set()
    at_hand = Places({}, {name: Path(name) for name in recipe.data})  # names stand in for folders
    for step in plan(recipe, first, at_hand):
        if step.command == "train":
            texts |= set(texts_in(compose(list(step.job.overrides))))
        else:
            texts |= {str(parse(text).value()) for text in step.job.overrides}
            texts |= set(texts_in(_rewards(recipe, options)))
    overridden = {str(parse(text).key_or_group) for text in options.overrides}
    return (texts & set(recipe.models)) | {
        name for name, data_set in recipe.data.items() if data_set.key not in overridden
    }


def folder_name(row: str, seed: int) -> str:
    """Return the name of a row's run.

    >>> folder_name("supervised+nlpo corrected", 3)
    'supervised-nlpo-corrected-seed3'
    """
    return f"{re.sub(r'[^0-9A-Za-z_]+', '-', row)}-seed{seed}"


def _with_needed(recipe: Recipe, rows: Sequence[str]) -> set[str]:
    """Add the rows that supply other rows' start models or first evaluations."""
    wanted: set[str] = set(rows)
    if recipe.annotation and recipe.annotation.row:
        wanted.add(recipe.annotation.row)
    for name in reversed(recipe.rows):
        row = recipe.rows[name]
        if name in wanted:
            wanted |= {other for other in (row.start, row.before) if other}
    return wanted


def _training(recipe: Recipe, options: Asked, places: Places, name: str, seed: int) -> Step:
    row, run_name = recipe.rows[name], folder_name(name, seed)
    chosen = [*_settings(recipe, name), *overrides_for(recipe, places)]
    if row.start:
        chosen.append(f"model.path={quoted(_model_of(recipe, options.out, row.start, seed))}")
    chosen += [
        *(SMALL if options.small else ()),
        *(recipe.small if options.small else ()),
        *options.overrides,
    ]
    if places.models:
        chosen += replaced(compose(chosen), places.models)
    if recipe.annotation and not row.online:
        chosen.append(f"data.folder={quoted(_annotated(options.out, seed))}")
    chosen += [f"seed={seed}", f"output_dir={quoted(options.out)}", f"run_name={quoted(run_name)}"]
    return Step("train", name, seed, Job(tuple(chosen), run_name, options.out / run_name))


def _annotation(recipe: Recipe, options: Asked, places: Places, seed: int, reference: str | None) -> Step:
    annotation = recipe.annotation
    assert annotation is not None
    folder = _annotated(options.out, seed)
    files = overrides_for(recipe, places)
    chosen = [f"experiment={annotation.experiment}", *annotation.set, *files]
    if options.small:
        chosen += SMALL_ANNOTATION
    chosen.append(f"output={quoted(folder)}")
    if reference:
        chosen += [f"reference={quoted(places.models.get(reference, reference))}", "value=true"]
        chosen += [*SMALL_VALUES, *annotation.small] if options.small else []
    chosen += for_annotation(options.overrides, values=reference is not None)
    if places.models:
        chosen += replaced(_rewards(recipe, options, files), places.models)
    return Step("annotate", annotation.experiment, seed, Job(tuple(chosen), folder.name, folder))


def _rewards(recipe: Recipe, options: Asked, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return the rewards of the rows, which are also those of the annotation."""
    first = next(iter(recipe.trained))
    return {"reward": compose([*_settings(recipe, first), *files, *options.overrides])["reward"]}


def _settings(recipe: Recipe, name: str) -> list[str]:
    row = recipe.rows[name]
    return [*([f"experiment={row.experiment}"] if row.experiment else []), *recipe.set, *row.set]


def _model_of(recipe: Recipe, out: Path, name: str, seed: int) -> Path:
    """Return a row's model folder, the best model's if its experiment keeps it."""
    named = recipe.rows[name].experiment
    keeps_best = named is not None and _keeps_best(named)
    return out / folder_name(name, seed) / ("best_model" if keeps_best else "model")


@cache
def _keeps_best(name: str) -> bool:
    return experiment(name).get("keep_best") is not None


def _annotated(out: Path, seed: int) -> Path:
    return out / f"annotated-seed{seed}"


@cache
def _num_iterations(job: Job) -> int:
    """Return a begun run's requested number of iterations."""
    return PlannedRun("", "", 0, job).num_iterations()
