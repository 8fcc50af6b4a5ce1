"""The algorithm, the task and the environment of a run: from what was asked for to the finished component."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

from contracts.components import create
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import OPTIONAL as ALGORITHMS_MORE
from learner.algorithms.base import Algorithm
from rollout_workers.environments import ENVIRONMENTS
from rollout_workers.environments.base import EnvironmentSettings, MakesEnvironments
from services.tasks import TASKS
from services.tasks.base import OPTIONAL as TASKS_MORE
from services.tasks.base import SIDE_KEY, Task

# The built-in ones, what each has to be, and what it may be besides.
TABLES: Mapping[str, tuple[Mapping[str, str], type, tuple[type, ...]]] = {
    "algorithm": (ALGORITHMS, Algorithm, ALGORITHMS_MORE),
    "task": (TASKS, Task, TASKS_MORE),
    "environment": (ENVIRONMENTS, MakesEnvironments, (EnvironmentSettings,)),
}
# Options beside those of the class, which the run takes out before: for messages.
OF_THE_RUN: Mapping[str, tuple[str, ...]] = {"task": (SIDE_KEY,)}


def component(value: Any, info: ValidationInfo) -> Any:
    """The algorithm, task or environment that `{"name": …, **options}` or a bare name asks for."""
    kind = str(info.field_name)
    table, protocol, optional = TABLES[kind]
    name, options = name_and_options(value, kind)
    found = create(kind, name, options, table, protocol, optional, known=OF_THE_RUN.get(kind, ()))
    if kind == "environment":
        _check_environment(name, found, info.data.get("task"))
    return found


def _check_environment(name: str, found: Any, task: Any) -> None:
    """Is it one, and the one that the task's prompts are for? One of the user's own may play them as well."""
    if not isinstance(found, EnvironmentSettings):
        raise InputError(
            f"environment={name}: {type(found).__name__} is no environment: expected a class that extends "
            f"rollout_workers.environments.base.EnvironmentSettings"
        )
    needed = getattr(task, "needs_environment", None)
    if needed is not None and name in ENVIRONMENTS and name != needed:
        raise InputError(
            f"environment={name}: this task's prompts are episodes of another; expected environment={needed}"
        )


def name_and_options(value: Any, kind: str) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f"{kind}: got {value!r}; expected a name, or a mapping with a name and options")
    options = {str(key): option for key, option in value.items() if key != "name"}
    return value["name"], options
