"""Users' rewards: a class, a function, or either as a coroutine.

    package.module:name ─┬─▶ a class ─────▶ itself
    FILE.py:name         ├─▶ a function ──▶ a class; its options are the arguments with a default
    object:name@digest   └─▶ an object ───▶ a class that calls it or its method

Each may take the samples, or lists by name (`user_rewards/arguments.py`). The names set the class's
`needs_references` and `needs_meta`.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from unicodedata import normalize

from contracts.components import check_component, class_of, find, import_module
from contracts.errors import InputError, did_you_mean
from contracts.processes.python_files import is_file
from contracts.scores import GROUPS, Metric, Reward, Sample
from contracts.signatures import check_function, methods_of
from reward_servers.graders import METRICS, REWARDS
from reward_servers.settings import Part
from reward_servers.user_rewards.arguments import FIELDS, Arguments, named_arguments
from reward_servers.user_rewards.metric_arguments import (
    check_metric_class,
    check_metric_function,
    wanted_arguments,
)
from reward_servers.user_rewards.prefixes import awaited_by_prefix, by_prefix, prefix_unit

ATTRIBUTES = ("scores", "deterministic", "needs_references", "needs_meta", "requires")
BUILT_IN = {"reward": REWARDS, "metric": METRICS}
PROTOCOLS: dict[str, type] = {"reward": Reward, "metric": Metric}
METHODS = [method for protocol in PROTOCOLS.values() for method in methods_of(protocol)]


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A reward's `score` in one shape.

    Example: `ScoreCall(lambda samples: [1.0 for _ in samples], is_coroutine=False)`
    """

    call: Callable[[Sequence[Sample]], Any]  # returns what the reward does: scores, or what to await
    is_coroutine: bool


def scoring_of(grader: Any) -> ScoreCall:
    """Return the `score` of a reward."""
    score = grader.score
    arguments = named_arguments(type(grader).__name__, score, getattr(score, "keywords", ()))
    call = score if arguments is None else lambda samples: score(**arguments.lists(samples))
    unit = prefix_unit(grader)
    if _is_coroutine(score):
        return ScoreCall(call if unit is None else awaited_by_prefix(call, unit), True)
    call = _awaited(call)
    return ScoreCall(call if unit is None else by_prefix(call, unit), False)


def _awaited(call: Callable[[Sequence[Sample]], Any]) -> Callable[[Sequence[Sample]], Any]:
    """Return a call that waits if its result proves to be a coroutine, as behind a decorator."""

    async def result_of(answer: Awaitable[Any]) -> Any:
        return await answer

    def awaited(samples: Sequence[Sample]) -> Any:
        answer = call(samples)
        return asyncio.run(result_of(answer)) if inspect.isawaitable(answer) else answer

    return awaited


def settled(part: Part) -> Part:
    """Return the part with the option of the reward `function`, a function's address, as its name.

    >>> settled(Part(name="function", label="own", options={"function": "m.py:f", "k": 1})).name
    'm.py:f'
    """
    address = part.options.get("function")
    if part.name != "function" or not isinstance(address, str) or ":" not in address:
        return part
    options = {key: value for key, value in part.options.items() if key != "function"}
    return part.model_copy(update={"name": address, "options": options})


def find_grader(kind: str, name: str) -> type:
    """Return the class of a reward or a metric; make one for a function.

    Raises:
        InputError: the name is unknown, its module does not import, or it takes other arguments.
    """
    if ":" not in name:
        return find(kind, name, BUILT_IN[kind])
    where, (place, _, attribute) = f"{kind}={name}", name.partition(":")
    module = import_module(place, where)
    attribute = normalize("NFKC", attribute)  # as Python reads names
    grader = getattr(module, attribute, None)
    if grader is None and is_file(place):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{where}: {place} has no {attribute}{did_you_mean(attribute, there)}")
    if grader is None:
        return find(kind, name, {})
    if isinstance(grader, type):
        return _with_needs(where, grader) if kind == "reward" else grader
    (method,) = methods_of(PROTOCOLS[kind])
    is_called = callable(grader) and not callable(getattr(grader, method, None))
    if not is_called and any(callable(getattr(grader, name, None)) for name in METHODS):
        sole = class_of(grader)
        return _with_needs(where, sole) if kind == "reward" else sole
    if not callable(grader):
        raise InputError(
            f"{where}: got an object ({type(grader).__name__}); expected a class or a function, or an object "
            f"with a method {method}(samples)"
        )
    return _class_of(where, grader) if kind == "reward" else _metric_of(where, grader)


def check_grader(kind: str, name: str, grader: type) -> None:
    """Refuse a class whose method takes the wrong arguments.

    Raises:
        InputError: the arguments are wrong; the message has the actual and the expected ones.
    """
    if issubclass(grader, OfFunction) or (kind == "reward" and _arguments_of(f"{kind}={name}", grader)):
        return  # checked when it was found
    if kind == "metric":
        check_metric_class(f"metric={name}", grader, wanted_of(name))
    else:
        check_component(kind, name, grader, PROTOCOLS[kind])


def wanted_of(name: str) -> tuple[str, ...]:
    """Return a metric's arguments beside the samples: "split", "model", or both."""
    metric: Any = find_grader("metric", name)
    return wanted_arguments(metric.function if issubclass(metric, OfFunction) else metric.compute)


def scores_groups(grader: Any) -> bool:
    """Return whether a reward needs all samples of a prompt in one call."""
    return getattr(grader, "scores", None) == GROUPS


def wants_groups(parts: Iterable[Part]) -> bool:
    """Return whether any of the rewards needs all samples of a prompt in one call."""
    return any(unit_of(part) == GROUPS for part in parts)


def unit_of(part: Part) -> str:
    """Return the unit of a reward's call: "groups", "texts" (a coroutine gets one), or "batches"."""
    grader: Any = find_grader("reward", settled(part).name)
    if scores_groups(grader):
        return GROUPS
    score = grader.function if issubclass(grader, OfFunction) else grader.score
    return "texts" if _is_coroutine(score) else "batches"


class OfFunction:
    """A class made for a function that is a reward or a metric."""

    function: ClassVar[Callable[..., Any]]
    method: ClassVar[str] = "score"

    def __init__(self, **options: Any) -> None:
        setattr(self, self.method, functools.partial(type(self).function, **options))


def _metric_of(where: str, function: Any) -> type:
    body = {"function": staticmethod(function), "method": "compute", "__signature__": _options_of(function)}
    check_metric_function(where, _shown(function), function)
    return type(_shown(function), (OfFunction,), body)


def _class_of(where: str, function: Any) -> type:
    arguments = named_arguments(where, function)
    if arguments is None:
        try:
            check_function(where, function, ["samples"], may_be_coroutine=True)
        except InputError as error:
            if inspect.isasyncgenfunction(function) or "samples" in inspect.signature(function).parameters:
                raise
            raise InputError(f"{error}. Or name its lists: {_shown(function)}(completions, …)") from None
    elif inspect.isasyncgenfunction(function):
        raise InputError(f"{where}: got a function that yields (async def); expected one that returns a list")
    attributes = {key: getattr(function, key) for key in ATTRIBUTES if hasattr(function, key)}
    body = {"function": staticmethod(function), "__module__": getattr(function, "__module__", __name__)}
    made = type(
        _shown(function), (OfFunction,), {**body, **attributes, "__signature__": _options_of(function)}
    )
    return made if arguments is None else _needing(made, arguments)


def _shown(function: Any) -> str:
    """Return a function's name; for a wrapper, the called function's name."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


def _options_of(function: Any) -> inspect.Signature:
    """Return a function's options, its arguments with a default, by name."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C
        return inspect.Signature()
    options = [one for one in arguments if one.default is not one.empty and one.name not in FIELDS]
    return inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in options])


def _with_needs(where: str, grader: type) -> type:
    """Return the class; if its `score` takes lists by name, a similar class that declares its needs."""
    arguments = _arguments_of(where, grader)
    return grader if arguments is None else _needing(type(grader.__name__, (grader,), {}), arguments)


def _arguments_of(where: str, grader: type) -> Arguments | None:
    score = getattr(grader, "score", None)
    return named_arguments(where, score, ("self",)) if callable(score) else None


def _needing(grader: Any, arguments: Arguments) -> type:
    """Add the needs that the arguments' names imply to the needs that the class declares."""
    keys = getattr(grader, "needs_meta", ())
    keys = (keys,) if isinstance(keys, str) else tuple(keys)
    grader.needs_meta = tuple(dict.fromkeys((*keys, *arguments.columns)))
    if "references" in arguments.needed:
        grader.needs_references = True
    made: type = grader
    return made


def _is_coroutine(score: Any) -> bool:
    inner = score.func if isinstance(score, functools.partial) else score
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)
