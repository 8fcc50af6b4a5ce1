"""Build the algorithm, the task and the environment of a run from their names and options."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

from contracts.components import create
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS, SYNONYMS
from learner.algorithms.base import Algorithm
from learner.algorithms.classes import algorithm_class
from rollout_workers.environments import ENVIRONMENTS
from rollout_workers.environments.base import EnvironmentSettings, MakesEnvironments
from services.data.tasks import TASKS
from services.data.tasks.base import OPTIONAL as TASKS_MORE
from services.data.tasks.base import SIDE_KEY, Task

# By kind: the built-in components, their required type, and optional types.
TABLES: Mapping[str, tuple[Mapping[str, str], type, tuple[type, ...]]] = {
    "algorithm": (ALGORITHMS, Algorithm, ()),
    "task": (TASKS, Task, TASKS_MORE),
    "environment": (ENVIRONMENTS, MakesEnvironments, (EnvironmentSettings,)),
}
# Options that belong to the run, not to the class. Messages list these, too.
OF_THE_RUN: Mapping[str, tuple[str, ...]] = {"task": (SIDE_KEY,)}


def component(value: Any, info: ValidationInfo) -> Any:
    """Build the algorithm, task or environment from a name or from `{"name": …, **options}`.

    Raises:
        InputError: the name is unknown, an option is wrong, or the environment does not fit the task.
    """
    kind = str(info.field_name)
    table, protocol, optional = TABLES[kind]
    name, options = name_and_options(value, kind)
    if kind == "algorithm":
        algorithm_class(name)  # its message says more than a list of missing methods
    made = create(kind, name, options, table, protocol, optional, known=OF_THE_RUN.get(kind, ()))
    if kind == "environment":
        _check_environment(name, made, info.data.get("task"))
    return made


def _check_environment(name: str, environment: Any, task: Any) -> None:
    """Reject a value that is not an environment, and a built-in one that can't play the task's prompts."""
    if not isinstance(environment, EnvironmentSettings):
        raise InputError(
            f"environment={name}: {type(environment).__name__} is not an environment: expected a class that "
            f"extends whetstone.EnvironmentSettings"
        )
    needed = getattr(task, "needs_environment", None)
    if needed is not None and name in ENVIRONMENTS and name != needed:
        raise InputError(f"environment={name} can't play this task's prompts; expected environment={needed}")


def name_and_options(value: Any, kind: str) -> tuple[str, dict[str, Any]]:
    """Split `{"name": …, **options}` or a bare name into name and options.

    Raises:
        InputError: the value is neither a name nor a mapping with a name.
    """
    if isinstance(value, str):
        return our_name(value, kind), {}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f"{kind}: got {value!r}; expected a name, or a mapping with a name and options")
    options = {str(key): option for key, option in value.items() if key != "name"}
    return our_name(value["name"], kind), options


def our_name(name: str, kind: str) -> str:
    """Return Whetstone's name of an algorithm that has other names elsewhere."""
    return SYNONYMS.get(name, name) if kind == "algorithm" else name
