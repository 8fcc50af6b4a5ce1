"""Find an algorithm's class by its name, and refuse a user's class that is no algorithm."""

import inspect
from collections.abc import Callable
from dataclasses import fields

from contracts.components import find
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import OPTIONS, Algorithm
from learner.algorithms.traits import Traits

DECLARATION = 'traits: ClassVar[Traits] = Traits(learns_from="rollouts")'


def algorithm_class(name: str) -> type[Algorithm]:
    """Return a built-in algorithm's class, or the class at `package.module:Class`.

    Raises:
        InputError: the class does not exist or extend `Algorithm`, or lacks traits, options or methods.
    """
    kind = find("algorithm", name, ALGORITHMS)
    where = f"algorithm={name}"
    if not issubclass(kind, Algorithm):
        raise InputError(
            f"{where}: {kind.__name__} does not extend Algorithm. Expected a class with traits: write "
            f"`class {kind.__name__}(Algorithm):` and in it `{DECLARATION}`. Both names come from whetstone"
        )
    for check in CHECKS:
        check(where, kind)
    return kind


def _check_traits(where: str, kind: type[Algorithm]) -> None:
    got = getattr(kind, "traits", None)
    if not isinstance(got, Traits):
        has = "declares no traits" if got is None else f"has traits={got!r:.80}"
        raise InputError(
            f"{where}: {kind.__name__} {has}. Expected a record of Traits: write `{DECLARATION}` at the "
            f"top of the class. Traits comes from whetstone"
        )


def _check_members(where: str, kind: type[Algorithm]) -> None:
    lacking = [name for name in OPTIONS if name not in kind.model_fields and not hasattr(kind, name)]
    lacking += sorted(kind.__abstractmethods__)
    if lacking:
        raise InputError(
            f"{where}: {kind.__name__} is no algorithm: it lacks {', '.join(lacking)}. Expected these "
            f"fields and methods, as whetstone.Algorithm declares them"
        )


def _check_names(where: str, kind: type[Algorithm]) -> None:
    """Refuse names without effect: a trait outside `traits`, or a field that a property hides."""
    for trait in (field.name for field in fields(Traits)):
        if hasattr(kind, trait) and not inspect.isfunction(getattr(kind, trait)):
            raise InputError(
                f"{where}: {kind.__name__}.{trait} is a class attribute, which nothing reads. Put it into "
                f"the traits: `Traits(…, {trait}=…)`"
            )
    for name in kind.model_fields:
        if isinstance(getattr(Algorithm, name, None), property):
            raise InputError(
                f"{where}: {kind.__name__}.{name} is a field, and Algorithm has a property of this name. "
                f"Expected a property: write `@property` and `def {name}(self)`, or rename the field"
            )


def _check_promises(where: str, kind: type[Algorithm]) -> None:
    """Refuse traits that need methods or options that the class lacks."""
    from learner.algorithms.trpo import TRPO

    if kind.traits.masks and kind.mask_rule is Algorithm.mask_rule:
        raise InputError(
            f"{where}: {kind.__name__} has the trait masks=True and no method mask_rule(). Expected one "
            f"that returns a whetstone.MaskRule"
        )
    if kind.traits.update == "trust_region" and not issubclass(kind, TRPO):
        raise InputError(
            f"{where}: {kind.__name__} has the trait update='trust_region' and does not extend TRPO. "
            f"Expected `class {kind.__name__}(TRPO):`, whose options this update reads, or "
            f"update='minibatches'"
        )


CHECKS: tuple[Callable[[str, type[Algorithm]], None], ...] = (
    _check_traits,
    _check_names,
    _check_members,
    _check_promises,
)
