"""What a task is: prompts in three splits, and what they are judged by unless something else is asked for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from contracts.components import create
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.tasks import TASKS

if TYPE_CHECKING:
    from services.tasks.responses import ResponseRow

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Side = Literal["left", "right"]
SIDE_KEY = "truncation_side"  # of every task, a user's own included: read by the run, not by the class


@runtime_checkable
class ReadsAhead(Protocol):
    """A task may show its first prompts with nothing heavy imported, so that bad ones are refused at once."""

    def first_prompts(self, split: Split) -> Sequence[Prompt]: ...


@runtime_checkable
class HasResponses(Protocol):
    """A task whose data brings more than good answers: bad ones, or numbers for each."""

    def responses(self, split: Split) -> "Sequence[ResponseRow]": ...


@runtime_checkable
class CountsLeftOut(Protocol):
    """A task may say what of its data it leaves out by itself, and how often for each reason."""

    def left_out(self, split: Split) -> Mapping[str, int]: ...


OPTIONAL = (ReadsAhead, HasResponses, CountsLeftOut)


class Task(Protocol):
    """A settings class with one method; making it loads nothing, `prompts` does.

    The class attributes may be left out: then rewards and metrics must be asked for, and long prompts lose
    their beginning. A task whose prompts are nothing but episodes names their environment:
    `needs_environment: ClassVar[str] = "textworld"`.

    Example: a task of one's own, asked for with `task=my_module:Capitals`.

        class Capitals(Settings):
            default_reward: ClassVar[str] = "rouge"
            default_metrics: ClassVar[tuple[str, ...]] = ("rouge",)

            def prompts(self, split: Split) -> list[Prompt]:
                return [Prompt(f"capitals/{split}/0", "The capital of France is", references=("Paris",))]
    """

    default_reward: ClassVar[str | None]  # None: there is no natural one, `reward=` must say
    default_metrics: ClassVar[tuple[str, ...]]
    truncation_side: ClassVar[Side]  # of long prompts, unless task.truncation_side says

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """The prompts of one split: the same ones in the same order at every call.

        Raises:
            InputError: the data is missing, unreadable, or lacks a column.
        """
        ...


def asked_for(value: Any, *, known: Sequence[str] = ()) -> Task | None:
    """The task that `{"name": …, **options}` asks for; None where rows come as columns.

    Args:
        known: options that the asking command reads itself; named where one is misspelt.

    Raises:
        InputError: it names none, or one that can't be made.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f"task: got {value!r}; expected task=NAME, and options as task.OPTION=VALUE")
    options = {str(key): option for key, option in value.items() if key != "name"}
    task: Task = create("task", value["name"], options, TASKS, Task, OPTIONAL, known=known)
    return task
