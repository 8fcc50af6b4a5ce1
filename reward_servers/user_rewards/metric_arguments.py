"""Arguments of a metric's `compute` beside the samples: the split's name, and the model."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from contracts.signatures import check_function, check_methods

NAMES = ("split", "model")


def wanted_arguments(compute: Callable[..., Any] | None) -> tuple[str, ...]:
    """Return a metric's arguments `split` and `model` without a default.

    >>> wanted_arguments(lambda samples, model, split="": {})
    ('model',)
    """
    try:
        arguments = inspect.signature(compute).parameters if compute else {}
    except (TypeError, ValueError):  # some functions written in C
        return ()
    return tuple(name for name in NAMES if name in arguments and arguments[name].default is Parameter.empty)


def check_metric_class(where: str, metric: type, wanted: Sequence[str]) -> None:
    """Refuse a class whose `compute` takes arguments beyond the samples and `wanted`.

    Raises:
        InputError: `compute` takes another argument.
    """
    named = [Parameter(name, Parameter.KEYWORD_ONLY) for name in wanted]
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "samples")]

    def compute(*_: Any, **__: Any) -> None: ...

    compute.__signature__ = Signature([*first, *named], return_annotation=Mapping)  # type: ignore[attr-defined]
    check_methods(where, "metric", metric, type("Metric", (), {"compute": compute}))


def check_metric_function(where: str, name: str, function: Callable[..., Any]) -> None:
    """Refuse a function with arguments beyond the samples, `split` and `model`.

    Raises:
        InputError: the function takes another argument.
    """
    with_samples: Any = functools.partial(function, **dict.fromkeys(wanted_arguments(function)))
    with_samples.__name__ = name
    check_function(where, with_samples, ["samples"])
