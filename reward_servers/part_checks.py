"""Check a reward's parts or the metrics before they are served, and read their needs."""

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

SUMMED = tuple(Part.model_fields.keys() - {"name", "options"})  # a part's keys beside its reward's options


class ChecksItself(Protocol):
    """A grader's optional methods: `check` reads files before a run, `load` loads the model."""

    def check(self) -> None: ...

    def load(self) -> None: ...


def check_parts(kind: str, parts: Sequence[Part]) -> None:
    """Refuse parts that no machine could serve, by their names and options.

    A user's class is imported and its options are matched with its constructor. No instance is made, because
    it may load a model, which only the replica should do.

    Args:
        kind: "reward" or "metric".

    Raises:
        InputError: a name or option is unknown, or a class doesn't import, lacks its method, or has a method
            with other arguments.
    """
    for part in map(settled, parts):
        grader = find_grader(kind, part.name)
        _check_shaping(kind, part, grader)
        check_grader(kind, part.name, grader)
        if issubclass(grader, Settings):
            _create(kind, part)
            continue
        try:
            inspect.signature(grader).bind(**part.options)
        except TypeError as error:
            raise InputError(
                f"{kind}={part.name}: {grader.__name__} does not take these options: {error}"
            ) from None


def check_at_hand(kind: str, parts: Sequence[Part]) -> None:
    """Refuse parts that this machine can't serve now, before anything starts.

    The machine must meet a built-in's `requires`. Its `check()` examines its options' files without loading
    them.

    Raises:
        InputError: something is missing; the message has the command that installs it.
    """
    for part in map(settled, parts):
        grader = find_grader(kind, part.name)
        check_requirements(grader, where=f"{kind}={part.name}")
        if issubclass(grader, Settings):
            _check_files(kind, part, _create(kind, part))


def needs_references(kind: str, part: Part) -> bool:
    """Return whether the component declares a comparison with references."""
    return bool(getattr(_class(kind, part), "needs_references", False))


def needs_meta(kind: str, part: Part) -> tuple[str, ...]:
    """Return the prompt's meta data keys that the component declares."""
    return meta_keys(_class(kind, part))


def is_ready(kind: str, name: str) -> bool:
    """Return whether this machine can serve a built-in without options and models."""
    grader = find_grader(kind, name)
    try:
        _create(kind, Part(name=name))
    except InputError:  # it asks for options
        return False
    return not hasattr(grader, "load") and not missing(requires(grader))


def is_deterministic(part: Part) -> bool:
    """Return whether a reward's answer depends only on the sample; True unless its class denies it.

    For a reward of whole groups: whether it depends only on the group's samples.
    """
    return bool(getattr(_class("reward", part), "deterministic", True))


def loaded(kind: str, part: Part) -> Any:
    """Return the component with its model loaded, so that the first sample doesn't wait for it."""
    made = _create(kind, settled(part))
    if isinstance(made, Settings) and hasattr(made, "load"):
        made.load()
    return made


def _check_shaping(kind: str, part: Part, grader: type) -> None:
    """Refuse options of the weighted sum for a metric, or for a class with an option of the same name."""
    if not part.shaping:
        return
    if kind == "metric":
        raise InputError(
            f"metrics={part.name}: {', '.join(part.shaping)} is for rewards; a metric is reported as it is"
        )
    options = grader.model_fields if issubclass(grader, Settings) else inspect.signature(grader).parameters
    if both := [word for word in part.shaping if word in options]:
        raise InputError(
            f"reward={part.name}: {both[0]} is an option of the weighted sum, and hides the option of "
            f"{grader.__name__} of the same name; rename that one"
        )


def _class(kind: str, part: Part) -> type:
    return find_grader(kind, settled(part).name)


def _create(kind: str, part: Part) -> Any:
    grader = find_grader(kind, part.name)
    check_grader(kind, part.name, grader)
    if issubclass(grader, Settings):  # a plain class may use these names otherwise
        for more in (ChecksItself, FindsAnswers):
            check_methods(f"{kind}={part.name}", kind, grader, more, optional=True)
    return make(kind, part.name, grader, part.options, known=SUMMED if kind == "reward" else ("label",))


def _check_files(kind: str, part: Part, made: Any) -> None:
    if not hasattr(made, "check"):
        return
    try:
        made.check()
    except InputError as error:
        raise InputError(f"{kind}={part.name}: {error}") from None
