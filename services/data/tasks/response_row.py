"""Record of one response of a data set."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.rollout import Prompt


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """One response of a data set. Rows of the same prompt share a group.

    Example: a pair of the chosen and the rejected reply is two rows.

        ResponseRow(prompt, "It is Paris.", group=7, is_good=True, order=0)
        ResponseRow(prompt, "No idea.", group=7, is_good=False, order=1)
    """

    prompt: Prompt
    response: str
    group: int  # index of its prompt in `prompts(split)`
    is_good: bool  # a pair's chosen response, or a response without a counterpart
    order: int  # place in its group, the best first if the data set ranks responses
    scores: Mapping[str, float] = field(default_factory=dict)  # the data set's numbers, such as votes
