"""Several tasks at once, each with its weight, its reward, its metrics and its chat template."""

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
from services.tasks import TASKS
from services.tasks.base import OPTIONAL, SIDE_KEY, Split, Task

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class PartOptions(Settings):
    """Options of a part that are the mixture's own; all others are its task's.

    Example: `{task: gsm8k, weight: 3, reward: math, chat: {system: "Be brief."}, data_files: math.jsonl}`
    """

    task: str  # a name of `whetstone list tasks`, or package.module:Class
    weight: float = Field(default=1.0, gt=0)  # share of the prompts, relative to the other parts'
    reward: Any = None  # as `reward=`; None: the run's, or the task's default
    metrics: Any = None  # as `metrics=`; None: the run's, or the task's default
    chat: dict[str, Any] = Field(default_factory=dict)  # options of model.chat that differ in this part
    truncation_side: Any = None  # as of every task
    solved_at: float | None = None  # None: curriculum.solved_at


@dataclass(frozen=True, slots=True)
class TaskPart:
    """One task of a mixture.

    Example: `TaskPart(PartOptions(task="gsm8k", weight=3.0), Gsm8k(), (Part(name="math"),), (), {})`
    """

    options: PartOptions
    task: Task
    reward: tuple[Part, ...]  # () where neither the part nor its task names one
    metrics: tuple[Part, ...]
    given: Mapping[str, Any]  # options of the task, as they were given

    def plain(self) -> dict[str, Any]:
        """Return the part as plain data with all defaults; `part_of` reads it back."""
        of_task = self.task.model_dump(mode="json") if isinstance(self.task, Settings) else dict(self.given)
        side = self.options.truncation_side or getattr(self.task, SIDE_KEY, "left")
        graders = {
            key: [{**each.model_dump(mode="json", exclude={"options"}), **each.options} for each in found]
            for key, found in (("reward", self.reward), ("metrics", self.metrics))
        }
        return {**of_task, **self.options.model_dump(mode="json"), **graders, SIDE_KEY: side}


def part_of(name: str, value: Any) -> TaskPart:
    """Build one part from its options.

    Raises:
        InputError: an option is wrong, or the task is unknown, or a mixture itself.
    """
    where = f"task.parts.{name}"
    value = {"task": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: got {value!r}; expected options such as {{task: gsm8k, weight: 3}}")
    mine = {key: option for key, option in value.items() if key in PartOptions.model_fields}
    given = {str(key): option for key, option in value.items() if key not in PartOptions.model_fields}
    options = build(PartOptions, mine, where)
    if options.task == "mixture":
        raise InputError(f"{where}.task=mixture: a mixture has no mixtures in it; name their parts here")
    try:
        found = find("task", options.task, TASKS)
        check_component("task", options.task, found, Task, OPTIONAL)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    task: Task = make(where, options.task, found, given, known=tuple(PartOptions.model_fields))
    reward = getattr(task, "default_reward", None) if options.reward is None else options.reward
    metrics = getattr(task, "default_metrics", ()) if options.metrics is None else options.metrics
    return TaskPart(
        options, task, parts(reward, f"{where}.reward"), parts(metrics, f"{where}.metrics"), given
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
        """Return all parts' prompts of a split; the parts take turns.

        Raises:
            InputError: a part's data can't be read, or it has no prompts of this split.
        """
        found = {name: part.task.prompts(split) for name, part in self.parts.items()}
        for name, prompts in found.items():
            if not isinstance(prompts, Sequence) or not len(prompts):
                raise InputError(
                    f"task.parts.{name}: expected a list of at least one {split} prompt, got none"
                )
        return InTurns(found)


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
        import numpy as np  # not for a command that only checks settings

        self._prompts = prompts
        counts = [len(own) for own in prompts.values()]
        rows = np.concatenate([np.arange(count) for count in counts])
        numbers = np.repeat(np.arange(len(counts)), counts)  # of the parts
        turns = np.lexsort((numbers, rows))
        self._rows, self._numbers = rows[turns], numbers[turns]
        self._names = list(prompts)

    def places(self, part: str) -> list[int]:
        """Return the indices of a part's prompts, in the part's own order."""
        found: list[int] = (self._numbers == self._names.index(part)).nonzero()[0].tolist()
        return found

    def of_part(self, part: str) -> "InTurns":
        """Return the prompts of one part alone."""
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
            return prompt  # a user's task may return anything, which its readers refuse
        if PART in prompt.meta:
            raise InputError(
                f"task.parts.{part}: prompt {prompt.id} has meta data '{PART}', where a mixture keeps the "
                f"name of its part; expected another name for this column"
            )
        return replace(prompt, id=f"{part}/{prompt.id}", meta={**prompt.meta, PART: part})
