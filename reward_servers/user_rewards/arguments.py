"""Arguments of a reward that a user wrote: the samples, or lists by name as other trainers pass them.

    def reward(samples)                        samples[i] has .text .prompt .references .meta .group
    def reward(prompts, completions, answer)   a list for each name, with an entry for each text

A function with an argument `completions` has the second form. Each further name is a column of the prompts'
meta data, or one of `FIELDS`. An argument with a default is left out where no sample has that column.
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
    """Names of the lists that a reward takes.

    Example: `def reward(completions, answer, language="en", **rest)` has
    `Arguments(needed=("completions", "answer"), optional=("language",), takes_rest=True)`
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    takes_rest: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names that must be columns of the meta data."""
        return tuple(name for name in self.needed if name not in FIELDS)

    def lists(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        """Return the lists to pass for these samples; None stands where a sample lacks the column.

        >>> samples = [Sample("4", "2 + 2?", meta={"answer": "4"}), Sample("Hm.", "Who?")]
        >>> Arguments(("completions", "answer")).lists(samples)
        {'completions': ['4', 'Hm.'], 'answer': ['4', None]}
        """
        there = list(dict.fromkeys(str(key) for sample in samples for key in sample.meta))
        names = [*self.needed, *(name for name in self.optional if name in there or name in FIELDS)]
        if self.takes_rest:
            names += [name for name in ("prompts", "references", *there) if name not in names]
        return {name: [_value(name, sample) for sample in samples] for name in names}


def named_arguments(where: str, function: Any, given: Collection[str] = ()) -> Arguments | None:
    """Return the names of the lists that a function or method takes; None if it takes the samples.

    Args:
        where: the user's option, for messages.
        given: options that the function already has.

    Raises:
        InputError: the function takes `completions`, and something that can't be passed by name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C
        return None
    taken = signature.parameters.values()
    if all(each.name != COMPLETIONS for each in taken):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    rest = inspect.Parameter.VAR_KEYWORD
    if any(each.kind not in (*by_name, rest) for each in taken):
        shown = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"{where}: got {shown}{signature}; expected arguments that can be given by name, such as "
            f"{shown}(prompts, completions, **columns)"
        )
    named = [each for each in taken if each.kind in by_name and each.name not in given]
    needed = tuple(each.name for each in named if each.default is each.empty)
    optional = tuple(each.name for each in named if each.default is not each.empty)
    return Arguments(needed, optional, any(each.kind is rest for each in taken))


def _value(name: str, sample: Sample) -> Any:
    return FIELDS[name](sample) if name in FIELDS else sample.meta.get(name)
