"""Checks of the parts of a reward or of the metrics before they are served, and what these parts need."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from contracts.components import make
from contracts.errors import InputError
from contracts.scores import FindsAnswers
from contracts.settings import Settings
from contracts.signatures import check_methods
from reward_servers.needs import meta_keys
from reward_servers.requirements import check_requirements, missing, requires
from reward_servers.settings import Part
from reward_servers.user_rewards.own import check_grader, find_grader, settled


class ChecksItself(Protocol):
    """Optional methods of a grader: `check` looks at files before a run, `load` loads the model."""

    def check(self) -> None: ...

    def load(self) -> None: ...


def check_parts(kind: str, parts: Sequence[Part]) -> None:
    """Refuse parts that no machine could serve, by their names and options alone.

    A user's class is imported and its options are matched with its constructor, but no instance is made:
    that may load a model, which only the replica should do.

    Args:
        kind: "reward" or "metric".

    Raises:
        InputError: a name or an option is unknown, or a class doesn't import, lacks its method, or has one
            that takes other arguments.
    """
    for part in map(settled, parts):
        found = find_grader(kind, part.name)
        _check_shaping(kind, part, found)
        check_grader(kind, part.name, found)
        if issubclass(found, Settings):
            _create(kind, part)
            continue
        try:
            inspect.signature(found).bind(**part.options)
        except TypeError as error:
            raise InputError(
                f"{kind}={part.name}: {found.__name__} does not take these options: {error}"
            ) from None


def check_at_hand(kind: str, parts: Sequence[Part]) -> None:
    """Refuse parts that this machine can't serve as it is now, before anything starts.

    The machine must have what a built-in names in `requires`. Its `check()` looks at the files that its
    options name, without loading them.

    Raises:
        InputError: something is missing; says the command that installs it.
    """
    for part in map(settled, parts):
        found = find_grader(kind, part.name)
        check_requirements(found, where=f"{kind}={part.name}")
        if issubclass(found, Settings):
            _check_files(kind, part, _create(kind, part))


def needs_references(kind: str, part: Part) -> bool:
    """Return whether the component says that it compares with references."""
    return bool(getattr(_class(kind, part), "needs_references", False))


def needs_meta(kind: str, part: Part) -> tuple[str, ...]:
    """Return the keys of a prompt's meta data that the component says it reads."""
    return meta_keys(_class(kind, part))


def is_ready(kind: str, name: str) -> bool:
    """Return whether this machine can serve a built-in with neither options nor a model."""
    found = find_grader(kind, name)
    try:
        _create(kind, Part(name=name))
    except InputError:  # it asks for options
        return False
    return not hasattr(found, "load") and not missing(requires(found))


def is_deterministic(part: Part) -> bool:
    """Return whether a reward's answer depends on the sample alone; True unless its class denies it.

    For a reward of whole groups: whether it depends on the group's samples alone.
    """
    return bool(getattr(_class("reward", part), "deterministic", True))


def loaded(kind: str, part: Part) -> Any:
    """Return the component with its model loaded, so that the first sample doesn't wait for it."""
    made = _create(kind, settled(part))
    if isinstance(made, Settings) and hasattr(made, "load"):
        made.load()
    return made


def _check_shaping(kind: str, part: Part, found: type) -> None:
    """Refuse options of the weighted sum for a metric, or for a class that has one of the same name."""
    if not part.shaping:
        return
    if kind == "metric":
        raise InputError(
            f"metrics={part.name}: {', '.join(part.shaping)} is for rewards; a metric is reported as it is"
        )
    options = found.model_fields if issubclass(found, Settings) else inspect.signature(found).parameters
    if both := [word for word in part.shaping if word in options]:
        raise InputError(
            f"reward={part.name}: {both[0]} is an option of the weighted sum, and hides the option of "
            f"{found.__name__} of the same name; rename that one"
        )


def _class(kind: str, part: Part) -> type:
    return find_grader(kind, settled(part).name)


def _create(kind: str, part: Part) -> Any:
    found = find_grader(kind, part.name)
    check_grader(kind, part.name, found)
    if issubclass(found, Settings):  # a plain class may use these names otherwise
        for more in (ChecksItself, FindsAnswers):
            check_methods(f"{kind}={part.name}", kind, found, more, optional=True)
    return make(kind, part.name, found, part.options)


def _check_files(kind: str, part: Part, made: Any) -> None:
    if not hasattr(made, "check"):
        return
    try:
        made.check()
    except InputError as error:
        raise InputError(f"{kind}={part.name}: {error}") from None
