"""Read and check the prompts of a task."""

from collections.abc import Sequence

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.whole_texts import expect_whole
from services.data.tasks.base import Split, Task


def prompts_of(task: Task, name: str, split: Split) -> Sequence[Prompt]:
    """Return a task's prompts, checked.

    Args:
        name: name of the task, for messages.

        Raises:
        InputError: the task can't read its data, or does not return a list of prompts.
    """
    where = f"task={name}: prompts({split!r})"
    try:
        prompts = task.prompts(split)
    except InputError:
        raise
    except Exception as error:  # a user's task may raise anything
        raise InputError(f"{where} raised {type(error).__name__}: {error}") from error
    if not isinstance(prompts, Sequence) or len(prompts) == 0:
        raise InputError(f"{where}: expected a list of at least one prompt, got {_shown(prompts)}")
    for prompt in prompts:
        if not isinstance(prompt, Prompt):
            raise InputError(f"{where}: expected whetstone.Prompt, got {_shown(prompt)}")
        if not isinstance(prompt.text, str):
            raise InputError(f"{where}: prompt {prompt.id}: expected a text, got {_shown(prompt.text)}")
        expect_whole([prompt.text, *prompt.references], f"{where}: prompt {prompt.id}")
    return prompts


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"
