"""Responses that a data set brings, good and bad: what is scored by `annotate` and learned from alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.tasks.base import HasResponses, Split, Task


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """One response of a data set. Rows of the same prompt share a group.

    Example: a pair of the chosen and the rejected reply is two rows.

        ResponseRow(prompt, "It is Paris.", group=7, is_good=True, order=0)
        ResponseRow(prompt, "No idea.", group=7, is_good=False, order=1)
    """

    prompt: Prompt
    response: str
    group: int  # the place of its prompt among `prompts(split)`
    is_good: bool  # a pair's chosen response, and any that has nothing to be compared with
    order: int  # place in its group: the data set's own ranking, if it has one, the best first
    scores: Mapping[str, float] = field(default_factory=dict)  # what the data set says of it, such as votes


def responses_of(task: Task, split: Split) -> Sequence[ResponseRow]:
    """The responses that a task brings; of most tasks they are the references, all of them good.

    A reference that begins with its prompt (imdb's) is the whole text: the rest is the response.

    Raises:
        InputError: there are none, or the data is wrong.
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
