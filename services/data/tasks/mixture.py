"""Several tasks at once, each with its own weight, reward, metrics and chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, overload

from pydantic import Field, PlainValidator, field_serializer

from contracts.components import check_component, find, make
from contracts.errors import InputError
from contracts.rollout import PART, Prompt
from contracts.settings import Settings, build
from reward_servers.settings import Part, parts
from services.data.tasks import TASKS
from services.data.tasks.base import OPTIONAL, SIDE_KEY, Split, Task

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class PartOptions(Settings):
    """Options of a part that belong to the mixture. All other options are its task's.

    Example: `{task: gsm8k, weight: 3, reward: math, chat: {system: "Be brief."}, data_files: math.jsonl}`
    """

    task: str  # a name of `whetstone list tasks`, or package.module:Class
    weight: float = Field(default=1.0, gt=0)  # share of the prompts, relative to the other parts
    reward: Any = None  # rewards, as in `reward=`; None: the run's, or the task's default
    metrics: Any = None  # metrics, as in `metrics=`; None: the run's, or the task's default
    chat: dict[str, Any] = Field(default_factory=dict)  # options of model.chat that differ in this part
    truncation_side: Any = None  # side of cutting, as for every task
    solved_at: float | None = None  # None: curriculum.solved_at


@dataclass(frozen=True, slots=True)
class TaskPart:
    """One task of a mixture.

    Example: `TaskPart(PartOptions(task="gsm8k", weight=3.0), Gsm8k(), (Part(name="math"),), (), {})`
    """

    options: PartOptions
    task: Task
    reward: tuple[Part, ...]  # () if neither the part nor its task names one
    metrics: tuple[Part, ...]
    task_options: Mapping[str, Any]  # the user's options of the task

    def plain(self) -> dict[str, Any]:
        """Return the part as plain data with all defaults, for `part_of`."""
        of_task = (
            self.task.model_dump(mode="json") if isinstance(self.task, Settings) else dict(self.task_options)
        )
        side = self.options.truncation_side or getattr(self.task, SIDE_KEY, "left")
        graders = {
            key: [
                {**part.model_dump(mode="json", exclude={"options"}), **part.options} for part in grader_parts
            ]
            for key, grader_parts in (("reward", self.reward), ("metrics", self.metrics))
        }
        return {**of_task, **self.options.model_dump(mode="json"), **graders, SIDE_KEY: side}


def part_of(name: str, value: Any) -> TaskPart:
    """Build one part from its options.

    Raises:
        InputError: an option is wrong, or the task is unknown or a mixture.
    """
    where = f"task.parts.{name}"
    value = {"task": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: got {value!r}; expected options such as {{task: gsm8k, weight: 3}}")
    mine = {key: option for key, option in value.items() if key in PartOptions.model_fields}
    task_options = {str(key): option for key, option in value.items() if key not in PartOptions.model_fields}
    options = build(PartOptions, mine, where)
    if options.task == "mixture":
        raise InputError(f"{where}.task=mixture: a mixture can't contain a mixture; name its parts here")
    try:
        component = find("task", options.task, TASKS)
        check_component("task", options.task, component, Task, OPTIONAL)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    task: Task = make(where, options.task, component, task_options, known=tuple(PartOptions.model_fields))
    reward = getattr(task, "default_reward", None) if options.reward is None else options.reward
    metrics = getattr(task, "default_metrics", ()) if options.metrics is None else options.metrics
    return TaskPart(
        options, task, parts(reward, f"{where}.reward"), parts(metrics, f"{where}.metrics"), task_options
    )


def _parts_of(value: Any) -> dict[str, TaskPart]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(
            f"task.parts: got {value!r}; expected a name and options for each part: "
            f"'task.parts.easy={{task: gsm8k, weight: 3}}'"
        )
    for name in value:
        if not NAME.fullmatch(str(name)):
            raise InputError(
                f"task.parts.{name}: expected a name of letters, digits, _ and - that begins with a letter"
            )
    return {str(name): part_of(str(name), options) for name, options in value.items()}


class TaskMixture(Settings):
    """Parts by name.

    Example: `TaskMixture(parts={"easy": {"task": "increasing_numbers", "weight": 3.0}, "hard": "dates"})`
    """

    default_reward: ClassVar[None] = None
    default_metrics: ClassVar[tuple[str, ...]] = ()

    # Each part by its name: {task: NAME, weight: 1.0}, with reward, metrics, chat, and the task's options
    parts: Annotated[dict[str, TaskPart], PlainValidator(_parts_of)]

    @field_serializer("parts")
    def _plain(self, value: dict[str, TaskPart]) -> dict[str, Any]:
        return {name: part.plain() for name, part in value.items()}

    def prompts(self, split: Split) -> "InTurns":
        """Return all parts' prompts of a split, in turns.

        Raises:
            InputError: a part's data can't be read, or the part has no prompts in this split.
        """
        by_part = {name: part.task.prompts(split) for name, part in self.parts.items()}
        for name, prompts in by_part.items():
            if not isinstance(prompts, Sequence) or not len(prompts):
                raise InputError(
                    f"task.parts.{name}: expected a list of at least one {split} prompt, got none"
                )
        return InTurns(by_part)


class InTurns(Sequence[Prompt]):
    """Prompts of several parts: the first of each part, the second of each, and so on.

    Example:

        >>> some = InTurns({"a": [Prompt("0", "x"), Prompt("1", "y")], "b": [Prompt("0", "z")]})
        >>> [prompt.id for prompt in some]
        ['a/0', 'b/0', 'a/1']
        >>> some.places("a"), some.of_part("b")[0].part
        ([0, 2], 'b')
    """

    def __init__(self, prompts: Mapping[str, Sequence[Prompt]]) -> None:
        import numpy as np  # late, because some commands only check settings

        self._prompts = prompts
        counts = [len(part_prompts) for part_prompts in prompts.values()]
        rows = np.concatenate([np.arange(count) for count in counts])
        numbers = np.repeat(np.arange(len(counts)), counts)  # numbers of the parts
        turns = np.lexsort((numbers, rows))
        self._rows, self._numbers = rows[turns], numbers[turns]
        self._names = list(prompts)

    def places(self, part: str) -> list[int]:
        """Return the indices of a part's prompts, in the part's order."""
        indices: list[int] = (self._numbers == self._names.index(part)).nonzero()[0].tolist()
        return indices

    def of_part(self, part: str) -> "InTurns":
        """Return the prompts of one part."""
        return InTurns({part: self._prompts[part]})

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        part = self._names[self._numbers[index]]
        prompt = self._prompts[part][int(self._rows[index])]
        if not isinstance(prompt, Prompt):
            return prompt  # a user's task may return anything; readers check it
        if PART in prompt.meta:
            raise InputError(
                f"task.parts.{part}: prompt {prompt.id} has meta data '{PART}', which a mixture uses for the "
                f"name of its part; expected another name for this column"
            )
        return replace(prompt, id=f"{part}/{prompt.id}", meta={**prompt.meta, PART: part})
