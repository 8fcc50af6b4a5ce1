"""Read actions of a Gymnasium space from a model's texts."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from contracts.errors import InputError

COMMANDS, MASK = "admissible_commands", "action_mask"  # keys of `info`, by convention


class Actions(Protocol):
    def read(self, text: str) -> Any | None:
        """Return the action; None: the text is no action."""
        ...

    def possible(self, info: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the texts of the possible actions; () if they are unknown."""
        ...


class TextActions:
    """Actions that are texts of the space, without blanks around them.

    Example: `Text(max_length=10)` has only letters and digits: "east" is an action, "go east" is not.
    """

    def __init__(self, space: Any) -> None:
        self._space = space

    def read(self, text: str) -> str | None:
        action = text.strip()
        return action if self._space.contains(action) else None

    def possible(self, info: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(map(str, info.get(COMMANDS, ())))


class NamedActions:
    """Actions of a `Discrete` space by their names, in any case and with any blanks.

    Example: with the names ("go left", "go right") of `Discrete(2)`, " Go  left" is action 0.
    """

    def __init__(self, space: Any, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._numbers = {_plain(name): int(space.start) + place for place, name in enumerate(names)}

    def read(self, text: str) -> int | None:
        return self._numbers.get(_plain(text))

    def possible(self, info: Mapping[str, Any]) -> tuple[str, ...]:
        mask = info.get(MASK)
        if mask is None:
            return self._names
        if len(mask) != len(self._names):
            raise InputError(f"info['{MASK}'] has {len(mask)} entries for {len(self._names)} actions")
        return tuple(name for name, allowed in zip(self._names, mask, strict=True) if allowed)


def read_actions(space: Any, names: Sequence[str]) -> Actions:
    """Make the reader of a space's actions.

    Raises:
        InputError: texts can't express such actions, or the names don't fit.
    """
    from gymnasium.spaces import Discrete, Text

    if isinstance(space, Text):
        if names:
            raise InputError(f"environment.actions: got {list(names)}; its actions are texts: {space}")
        return TextActions(space)
    if not isinstance(space, Discrete):
        raise InputError(
            f"environment: its actions are {space}; expected gymnasium.spaces.Text or Discrete. A Gymnasium "
            "wrapper of your own can make texts of others: environment.class_path=package.module:Class"
        )
    if len(names) != space.n or len({_plain(name) for name in names}) != len(names):
        raise InputError(
            f"environment.actions: got {list(names)}; expected {space.n} different names, one for each "
            f"action of {space}"
        )
    return NamedActions(space, names)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
