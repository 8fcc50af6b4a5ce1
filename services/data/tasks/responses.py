"""Collect a data set's responses, good and bad, for `annotate` and for learning from data."""

from collections.abc import Sequence

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import HasResponses, Split, Task
from services.data.tasks.response_row import ResponseRow


def responses_of(task: Task, split: Split) -> Sequence[ResponseRow]:
    """Return a task's responses. For most tasks these are the references, all of them good.

    Raises:
        InputError: the task has no responses, or its data is wrong.
    """
    if isinstance(task, HasResponses):
        return task.responses(split)
    is_whole = has_whole_references(task)
    rows = [
        ResponseRow(prompt, behind(prompt, text) if is_whole else text, group, is_good=True, order=order)
        for group, prompt in enumerate(task.prompts(split))
        for order, text in enumerate(prompt.references)
    ]
    if not rows:
        raise InputError(f"task: no prompt of {split} has a reference, so there is no response to learn from")
    return rows


def has_whole_references(task: Task | None) -> bool:
    """Tell whether a task's references are whole texts that begin with their prompts, as in imdb."""
    return getattr(task, "whole_references", False)


def behind(prompt: Prompt, reference: str) -> str:
    """Return the rest of a whole text after its prompt.

    >>> behind(Prompt("p", "This film"), "This film is dull.")
    ' is dull.'
    """
    return reference.removeprefix(prompt.text)
