"""Collect a data set's responses, good and bad, for `annotate` and for learning from data."""

from collections.abc import Sequence

from contracts.errors import InputError
from services.tasks.base import HasResponses, Split, Task
from services.tasks.response_row import ResponseRow


def responses_of(task: Task, split: Split) -> Sequence[ResponseRow]:
    """Return a task's responses; for most tasks these are the references, all of them good.

    A reference that begins with its prompt (as in imdb) is the whole text; the rest is the response.

    Raises:
        InputError: the task has no responses, or its data is wrong.
    """
    if isinstance(task, HasResponses):
        return task.responses(split)
    rows = [
        ResponseRow(prompt, text.removeprefix(prompt.text), group, is_good=True, order=order)
        for group, prompt in enumerate(task.prompts(split))
        for order, text in enumerate(prompt.references)
    ]
    if not rows:
        raise InputError(f"task: no prompt of {split} has a reference, so there is no response to learn from")
    return rows
