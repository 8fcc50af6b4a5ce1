"""Arguments of a user's reward: the samples, or lists by name like other trainers.

    def reward(samples)                        samples[i] has .text .prompt .references .meta .group
    def reward(prompts, completions, answer)   a list for each name, with an entry for each text

A function with an argument `completions` has the second form. Each further name is a column of the prompts'
meta data, or one of `FIELDS`. An argument with a default is omitted if no sample has that column.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import InputError
from contracts.scores import Sample

COMPLETIONS = "completions"
FIELDS: Mapping[str, Callable[[Sample], Any]] = {
    "prompts": lambda sample: sample.prompt,
    COMPLETIONS: lambda sample: sample.text,
    "references": lambda sample: list(sample.references),
    "groups": lambda sample: sample.group,
    "samples": lambda sample: sample,
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """Names of a reward's lists.

    Example: `def reward(completions, answer, language="en", **rest)` has
    `Arguments(needed=("completions", "answer"), optional=("language",), takes_rest=True)`
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    takes_rest: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of required meta data columns."""
        return tuple(name for name in self.needed if name not in FIELDS)

    def lists(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        """Return the lists for these samples, with None for a sample's missing column.

        >>> samples = [Sample("4", "2 + 2?", meta={"answer": "4"}), Sample("Hm.", "Who?")]
        >>> Arguments(("completions", "answer")).lists(samples)
        {'completions': ['4', 'Hm.'], 'answer': ['4', None]}
        """
        there = list(dict.fromkeys(str(key) for sample in samples for key in sample.meta))
        names = [*self.needed, *(name for name in self.optional if name in there or name in FIELDS)]
        if self.takes_rest:
            names += [name for name in ("prompts", "references", *there) if name not in names]
        return {name: [_value(name, sample) for sample in samples] for name in names}


def named_arguments(where: str, function: Any, options: Collection[str] = ()) -> Arguments | None:
    """Return the names of a function's lists; None if it takes the samples.

    Args:
        where: the user's option, for messages.
        options: the function's set options.

    Raises:
        InputError: the function takes `completions`, and an argument that can't be passed by name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C
        return None
    taken = signature.parameters.values()
    if all(parameter.name != COMPLETIONS for parameter in taken):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    rest = inspect.Parameter.VAR_KEYWORD
    if any(parameter.kind not in (*by_name, rest) for parameter in taken):
        shown = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"{where}: got {shown}{signature}; expected arguments that can be given by name, such as "
            f"{shown}(prompts, completions, **columns)"
        )
    named = [parameter for parameter in taken if parameter.kind in by_name and parameter.name not in options]
    needed = tuple(parameter.name for parameter in named if parameter.default is parameter.empty)
    optional = tuple(parameter.name for parameter in named if parameter.default is not parameter.empty)
    return Arguments(needed, optional, any(parameter.kind is rest for parameter in taken))


def _value(name: str, sample: Sample) -> Any:
    return FIELDS[name](sample) if name in FIELDS else sample.meta.get(name)
