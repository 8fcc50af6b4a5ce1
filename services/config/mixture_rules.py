"""Rules of a mixture: options that its parts take from the run, and options that a mixture excludes."""

from collections.abc import Mapping
from typing import Any

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, parts
from services.config.data_settings import DataSettings
from services.data.tasks.base import SIDE_KEY
from services.data.tasks.mixture import TaskMixture

FROM_THE_RUN = ("reward", "metrics", SIDE_KEY)  # options that a part inherits from the run
KINDS = {"reward": "reward", "metrics": "metric"}


def with_defaults(options: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mixture's options. Parts inherit from the run the options that they leave out.

    >>> both = {"a": "dates", "b": {"task": "dates", "reward": "dates"}}
    >>> with_defaults({"parts": both}, {"reward": "length"})["parts"]
    {'a': {'reward': 'length', 'task': 'dates'}, 'b': {'reward': 'dates', 'task': 'dates'}}
    """
    named = options.get("parts")
    if not isinstance(named, Mapping):
        return dict(options)
    defaults = {key: run[key] for key in FROM_THE_RUN if run.get(key) is not None}
    filled = {}
    for name, value in named.items():
        value = {"task": value} if isinstance(value, str) else value
        filled[name] = {**defaults, **value} if isinstance(value, Mapping) else value
    return {**options, "parts": filled}


def graders_of_parts(
    key: str, task: TaskMixture, chosen: Any, algorithm: Algorithm | None = None
) -> tuple[Part, ...]:
    """Return the rewards or metrics of all parts, each once.

    Args:
        key: "reward" or "metrics".
        chosen: the run's graders, which parts without graders inherit.
        algorithm: algorithm of the run; None: unknown.

    Raises:
        InputError: a part has no reward, two graders have one label, or no part uses the run's graders.
    """
    by_label: dict[str, tuple[str, Part]] = {}
    for name, part in task.parts.items():
        of_part: tuple[Part, ...] = getattr(part, key)
        if key == "reward" and not of_part and (algorithm is None or algorithm.traits.earns):
            raise InputError(
                f"task.parts.{name}: task={part.options.task} has no default reward; expected "
                f"task.parts.{name}.reward=NAME, or reward=NAME for all parts"
            )
        for grader in of_part:
            other, first = by_label.setdefault(grader.label, (name, grader))
            if first != grader:
                raise InputError(
                    f"task.parts: the {KINDS[key]} '{grader.label}' has other options in {other} than in "
                    f"{name}; give one of them another label: {{name: {grader.name}, label: {grader.label}2}}"
                )
    graders = tuple(grader for _, grader in by_label.values())
    if unused := [grader.label for grader in parts(chosen or None, key) if grader not in graders]:
        raise InputError(
            f"{key}={unused[0]}: every part of the mixture sets {key}, so none uses this; leave it out"
        )
    check_parts(KINDS[key], graders)
    return graders


def check_generated(algorithm: Algorithm, name: str, data: DataSettings | None) -> None:
    """Reject a mixture for an algorithm that learns from annotated data, which has no parts.

    Raises:
        ValueError: the algorithm can't learn from the mixture.
    """
    if data is not None or algorithm.traits.learns_from == "data":
        with_data = "" if data is None else f" with {data.source}"
        raise ValueError(
            f"task=mixture: algorithm={name}{with_data} learns from an annotated data set, which "
            f"has no parts; expected an algorithm that generates, without data"
        )


def check_answered_once(task: TaskMixture, environment_name: str, *, plays: bool) -> None:
    """Reject a mixture whose prompts begin episodes of several turns.

    Args:
        plays: whether rollouts are episodes of the environment.

    Raises:
        ValueError: the run or a part needs an environment; the message names it.
    """
    if plays:
        raise ValueError(
            f"task=mixture: prompts of several tasks are answered once, but environment="
            f"{environment_name} has several turns: leave environment out"
        )
    for name, part in task.parts.items():
        if needed := getattr(part.task, "needs_environment", None):
            raise ValueError(
                f"task.parts.{name}: task={part.options.task} needs environment={needed}, but a "
                f"mixture's prompts are answered once; expected a task without an environment"
            )
