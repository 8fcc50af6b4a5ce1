"""Protocol of a task: prompts in three splits, and default rewards and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from contracts.components import create
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks import TASKS
from services.data.tasks.response_row import ResponseRow

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
HELD_OUT: tuple[Split, ...] = SPLITS[1:]
Side = Literal["left", "right"]
SIDE_KEY = "truncation_side"  # option of every task, read by the run, not by the class


@runtime_checkable
class ReadsAhead(Protocol):
    """Task that shows its first prompts without heavy imports, so that bad rows are rejected at once."""

    def first_prompts(self, split: Split) -> Sequence[Prompt]: ...


@runtime_checkable
class HasResponses(Protocol):
    """Task whose data has bad answers, too, or numbers for answers."""

    def responses(self, split: Split) -> Sequence[ResponseRow]: ...


@runtime_checkable
class CountsLeftOut(Protocol):
    """Task that counts the rows it leaves out, by reason."""

    def left_out(self, split: Split) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class ColumnRead:
    """One column of a data set, and its role.

    Example: `ColumnRead("gold", "meta data of rewards", example="007")`
    """

    name: str
    read_as: str  # role; "" if the column is not read
    hint: str = ""  # why it is not read, or which option reads it
    example: Any = None  # first value that is not empty


@runtime_checkable
class TellsColumns(Protocol):
    """Task that knows the role of each column of its rows."""

    def columns_read(self, split: Split) -> Sequence[ColumnRead]: ...


OPTIONAL = (ReadsAhead, HasResponses, CountsLeftOut, TellsColumns)


class Task(Protocol):
    """Settings class with the method `prompts`, which loads the data. The constructor loads nothing.

    A class may leave out the attributes. Then the user sets reward and metrics, long prompts lose their
    beginning, and a tokenizer's chat template is applied. A task of episodes names their environment:
    `needs_environment: ClassVar[str] = "textworld"`.

    Example: a user's task, chosen with `task=my_module:Capitals`.

        class Capitals(Settings):
            default_reward: ClassVar[str] = "rouge"
            default_metrics: ClassVar[tuple[str, ...]] = ("rouge",)

            def prompts(self, split: Split) -> list[Prompt]:
                return [Prompt(f"capitals/{split}/0", "The capital of France is", references=("Paris",))]
    """

    default_reward: ClassVar[str | None]  # None: the user sets `reward=`
    default_metrics: ClassVar[tuple[str, ...]]
    truncation_side: ClassVar[Side]  # side on which long prompts are cut; task.truncation_side overrides it
    raw_text: ClassVar[
        bool
    ]  # whether prompts are for a model that continues texts: no chat template, unless the user sets one
    whole_references: ClassVar[bool]  # whether references begin with their prompts, which are not learned

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """Return the prompts of one split: the same prompts in the same order at every call.

        Raises:
            InputError: the data is missing, unreadable, or lacks a column.
        """
        ...


def asked_for(value: Any, *, known: Sequence[str] = ()) -> Task | None:
    """Build the task from `{"name": …, **options}`; return None for the value None.

    Args:
        known: options that the command reads itself, suggested for a misspelt option.

    Raises:
        InputError: `value` names no task, or the task can't be built.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f"task: got {value!r}; expected task=NAME, and options as task.OPTION=VALUE")
    if value["name"] == "mixture":
        raise InputError("task=mixture is for train, plan and evaluate; expected one of its tasks here")
    options = {str(key): option for key, option in value.items() if key != "name"}
    task: Task = create("task", value["name"], options, TASKS, Task, OPTIONAL, known=known)
    return task
