"""Grade a model on held-out prompts, or grade existing texts."""

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whetstone.command import CHILD, run_command
from whetstone.errors import InputError
from whetstone.here import command_here, why_not_here
from whetstone.objects import Objects, configured, own_name
from whetstone.overrides import words
from whetstone.rows import placed, write
from whetstone.runs import SPLITS, Run, is_run, write_lines

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("prediction", "prompt", "references", "meta", "group")  # columns that `whetstone score` reads
# Columns of `Run.samples`, and their names for `whetstone score`.
AS_SCORED = {"generated_text": "prediction", "prompt_text": "prompt"}
REFERENCE = re.compile(r"<START-\d+>(.*?)<END-\d+>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Graded:
    """Result of grading: the metrics over all texts, and a row for each text.

    Example: `Graded({"reward/mean": 0.5}, DataFrame({"generated_text": ["3 7"], "reward": [0.5]}))`
    """

    metrics: Mapping[str, float]
    samples: "DataFrame"


def evaluate(
    run_or_model: Run | str | os.PathLike[str],
    *,
    split: str = "validation",
    **overrides: Any,
) -> Graded:
    """Let a run's model, or any other, answer held-out prompts, and grade the texts as training does.

    Args:
        run_or_model: a run brings its configuration, which the overrides change; a model's folder or hub name
            needs at least `task`.
        overrides: as for `train`, with its Python objects.

    Example: `evaluate("gpt2", task="imdb", reward="sentiment", split="test")`

    Raises:
        InputError: an argument is wrong.
        RunError: no text could be graded.
    """
    from pandas import DataFrame

    if isinstance(run_or_model, Run):
        model = [str(run_or_model.folder)]
    elif is_run(Path(run_or_model)):
        model = [os.fspath(run_or_model)]
    else:
        model = words({"model.path": run_or_model})
    if split not in SPLITS.values():
        raise InputError(f"split={split!r}: expected {' or '.join(SPLITS.values())}")
    objects = Objects()
    configuration = configured(overrides, objects)
    if (config := Path(model[0], "config.yaml")).is_file():
        objects.add_earlier(config.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        write(objects.rows, Path(folder))
        output = Path(folder, "evaluation.json")
        options = ["--split", split, "--json", "--output", str(output)]
        _run(["evaluate", *model, *words(placed(configuration, Path(folder))), *options], objects)
        result = json.loads(output.read_text(encoding="utf-8"))
    return Graded(result["metrics"], DataFrame(result["predictions"]).drop(columns="split_name"))


def score(
    graders: Any, samples: "Sequence[str | Mapping[str, Any]] | DataFrame", *, as_rewards: bool = False
) -> Graded:
    """Score texts with rewards and metrics, without a model.

    Args:
        graders: the name of a reward or a metric, a Python callable, a class, an object with a method `score`
            or `compute`, `{"name": …, option: …}`, or a list of these.
        samples: texts; rows with `prediction`, and `prompt`, `references`, `meta` or `group` if needed; or
            `Run.samples`.
        as_rewards: take the reward if a metric has the same name.

    Example: `score(["rouge", my_function], [{"prediction": "a b", "references": ["a c"]}]).metrics`

    Raises:
        InputError: a grader is unknown, two give values of one name, or a sample lacks a field.
    """
    from pandas import DataFrame

    rows = _rows(samples)
    for grader in graders if isinstance(graders, list | tuple) else [graders]:
        if isinstance(grader, Mapping) and "name" not in grader:
            raise InputError(
                f'graders: got {grader!r:.200}; expected {{"name": …, option: …}}, or a list without '
                "weights, which are for training"
            )
    objects = Objects()
    graders = configured({"graders": graders}, objects)["graders"]
    answers: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "samples.jsonl")
        write_lines(file, [{key: row[key] for key in COLUMNS if key in row} for row in rows])
        for grader in graders if isinstance(graders, list) else [graders]:
            part = {"name": grader} if isinstance(grader, str) else grader
            values = _scored(part, file, as_rewards, objects)
            if twice := sorted(values.keys() & answers.keys()):
                label = part.get("label") or _reward_key(part)
                raise InputError(
                    f"graders: two of them give '{twice[0]}'; expected another label for one of them: "
                    f'{{"name": …, "label": "{label}2"}}'
                )
            answers |= values
    by_row = {key: value["rows"] for key, value in answers.items() if value["rows"] is not None}
    for key, value in answers.items():
        grades = value.get("grades", ())
        comments = [grade.get("comment") if isinstance(grade, dict) else None for grade in grades]
        by_row |= {f"{key}/comment": comments} if any(comments) else {}
    table = DataFrame(
        [{**row, **{key: values[i] for key, values in by_row.items()}} for i, row in enumerate(rows)]
    )
    return Graded({key: value["corpus"] for key, value in answers.items()}, table)


def _scored(
    part: Mapping[str, Any], file: Path, as_reward: bool, objects: Objects
) -> dict[str, dict[str, Any]]:
    """Return each key's value over all samples (`corpus`), and for each sample (`rows`).

    A label replaces a reward's name, and precedes a metric's keys.
    """
    options = [f"{key}={json.dumps(value)}" for key, value in part.items() if key not in ("name", "label")]
    command = ["score", part["name"], "--predictions", str(file), "--json", *["--reward"] * as_reward]
    if options:
        command += ["--option", *options]
    values: dict[str, dict[str, Any]] = json.loads(_run(command, objects))
    if (label := part.get("label")) is None:
        return values
    return {label if key == _reward_key(part) else f"{label}/{key}": value for key, value in values.items()}


def _reward_key(part: Mapping[str, Any]) -> str:
    """Return the key of a reward's values: its name, or a class's without its module."""
    return own_name(str(part["name"]))


def _run(command: Sequence[str], objects: Objects) -> str:
    """Run a command in this process if possible, and return its output."""
    if why_not_here():
        call = {"objects": objects.for_others()}
        return run_command(["run", *command], module=CHILD, show=False, call=call)
    return command_here(command, objects)


def _rows(samples: "Sequence[str | Mapping[str, Any]] | DataFrame") -> list[dict[str, Any]]:
    rows = samples if isinstance(samples, Sequence) else samples.to_dict("records")
    if isinstance(rows, str) or not rows:
        raise InputError(f"samples: got {rows!r}; expected texts, or rows with prediction")
    return [{"prediction": row} if isinstance(row, str) else _row(row) for row in rows]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    named = {AS_SCORED.get(key, key): value for key, value in row.items()}
    if (references := named.pop("ref_text", None)) and "references" not in named:
        named["references"] = REFERENCE.findall(references)
    return named
