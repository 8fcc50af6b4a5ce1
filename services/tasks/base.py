"""What a task is: prompts in three splits, and what they are judged by unless something else is asked for."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

from contracts.rollout import Prompt

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
METHODS = ("prompts",)


@runtime_checkable
class ReadsAhead(Protocol):
    """A task may show its first prompts with nothing heavy imported, so that bad ones are refused at once."""

    def first_prompts(self, split: Split) -> Sequence[Prompt]: ...


class Task(Protocol):
    """A settings class with one method; making it loads nothing, `prompts` does.

    The two class attributes may be left out: then rewards and metrics must be asked for.

    Example: a task of one's own, asked for with `task=my_module:Capitals`.

        class Capitals(Settings):
            default_reward: ClassVar[str] = "rouge"
            default_metrics: ClassVar[tuple[str, ...]] = ("rouge",)

            def prompts(self, split: Split) -> list[Prompt]:
                return [Prompt(f"capitals/{split}/0", "The capital of France is", references=("Paris",))]
    """

    default_reward: ClassVar[str | None]  # None: there is no natural one, `reward=` must say
    default_metrics: ClassVar[tuple[str, ...]]

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """The prompts of one split: the same ones in the same order at every call.

        Raises:
            InputError: the data is missing, unreadable, or lacks a column.
        """
        ...
