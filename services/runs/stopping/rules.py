"""Rules that stop a run, and their grammar.

    METRIC < NUMBER [for N]        also <= > >=: N numbers of this metric in a row; 1 without `for`
    METRIC no better for N         N numbers in a row that are no better than the best one before them
    diagnosis:NAME                 a rule of `whetstone diagnose` fires

METRIC is a metric of each iteration, as in the run's files, or `val/KEY`, a metric of each evaluation of the
validation split. More is better, except for losses and perplexities; `min:METRIC` and `max:METRIC` override
this.

A rule is a pure function that folds a metric's numbers into a `Progress`. So a resumed run reads them again
from its files, and continues exactly.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from contracts.errors import did_you_mean
from services.runs.best import SPLIT
from services.runs.diagnosis.rules import RULES
from services.runs.standard_errors import less_is_better

EXPECTED = (
    "expected 'METRIC<NUMBER', 'METRIC<NUMBER for N', 'METRIC no better for N' or 'diagnosis:NAME', such as "
    "'entropy<0.05' or 'val/reward/mean no better for 10'"
)
DIAGNOSIS, TEST = "diagnosis:", "test/"
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARES = re.compile(
    r"(?P<metric>.*?\S)\s*(?P<sign><=|>=|<|>)\s*(?P<bound>\S+?)(?:\s+for\s+(?P<times>\d+))?"
)
_STAYS = re.compile(r"(?:(?P<better>min|max):)?(?P<metric>\S.*?)\s+no\s+better\s+for\s+(?P<times>\d+)")


@dataclass(frozen=True, slots=True)
class Progress:
    """A rule's state after a metric's numbers so far.

    Example: `Progress(count=2, last=0.4, at=30, best=0.5, best_at=10)`
    """

    count: int = 0  # numbers in a row that count towards a stop
    last: float | None = None  # None: NaN or infinite
    at: int = 0  # iteration of the last number
    best: float | None = None
    best_at: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rule that compares each number with a bound.

    >>> rule = parse("entropy < 0.05 for 2")
    >>> seen = rule.after(rule.after(Progress(), 1, 0.04), 2, 0.03)
    >>> seen.count, rule.words(seen)
    (2, 'entropy is 0.03 after iteration 2, the number 2 in a row below 0.05')
    """

    text: str
    metric: str
    sign: str
    bound: float
    times: int

    def after(self, seen: Progress, at: int, value: float | None) -> Progress:
        """Record the number of iteration `at`. NaN (None) is beyond no bound."""
        holds = value is not None and SIGNS[self.sign](value, self.bound)
        return Progress(seen.count + 1 if holds else 0, value, at)

    def words(self, seen: Progress) -> str:
        """Say why the run stops."""
        side = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}[self.sign]
        row = f", the number {seen.count} in a row {side} {self.bound:g}" if self.times > 1 else ""
        return f"{self.metric} is {seen.last:.4g} after iteration {seen.at}{row}"


@dataclass(frozen=True, slots=True)
class Plateau:
    """A rule that compares each number with the best one before it. An equal number is no better.

    >>> rule = parse("val/loss no better for 2")
    >>> seen = Progress()
    >>> for at, value in ((10, 0.5), (20, 0.5), (30, 0.6)):
    ...     seen = rule.after(seen, at, value)
    >>> rule.better, rule.words(seen)
    ('min', 'val/loss was best after iteration 10 (0.5), and no better for 2 evaluations')
    """

    text: str
    metric: str
    better: Literal["max", "min"]
    times: int

    def after(self, seen: Progress, at: int, value: float | None) -> Progress:
        """Record the number of iteration `at`. NaN (None) is never better."""
        sign = -1.0 if self.better == "min" else 1.0
        if value is not None and (seen.best is None or sign * value > sign * seen.best):
            return Progress(0, value, at, value, at)
        return Progress(seen.count + 1, value, at, seen.best, seen.best_at)

    def words(self, seen: Progress) -> str:
        """Say why the run stops."""
        unit = "evaluation" if self.metric.startswith(SPLIT) else "iteration"
        numbers = f"{seen.count} {unit}{'s' * (seen.count > 1)}"
        if seen.best is None:
            return f"{self.metric} is not a finite number for {numbers}"
        return (
            f"{self.metric} was best after iteration {seen.best_at} ({seen.best:.4g}), "
            f"and no better for {numbers}"
        )


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A rule of `whetstone diagnose` that stops the run when it fires. Example: `diagnosis:held_out_falls`"""

    text: str
    name: str


StopRule = Comparison | Plateau | Diagnosed


def parse(text: str) -> StopRule:
    """Parse one rule.

    Raises:
        ValueError: `text` is not a rule.
    """
    text = " ".join(text.split())
    if text.startswith(DIAGNOSIS):
        return _diagnosed(text)
    if (stays := _STAYS.fullmatch(text)) is not None:
        metric, times = _metric(text, stays["metric"]), _times(text, stays["times"])
        is_less = stays["better"] == "min" or (not stays["better"] and less_is_better(metric))
        return Plateau(text, metric, "min" if is_less else "max", times)
    if (compares := _COMPARES.fullmatch(text)) is None:
        raise ValueError(f"got {text!r}; {EXPECTED}")
    metric, times = _metric(text, compares["metric"]), _times(text, compares["times"] or "1")
    return Comparison(text, metric, compares["sign"], _bound(text, compares["bound"]), times)


def _diagnosed(text: str) -> Diagnosed:
    name, names = text.removeprefix(DIAGNOSIS).strip(), [rule.name for rule in RULES]
    if name not in names:
        raise ValueError(f"got {text!r}: there is no such diagnosis{did_you_mean(name, names)}")
    return Diagnosed(text, name)


def _metric(text: str, metric: str) -> str:
    if metric.startswith(TEST):
        raise ValueError(
            f"got {text!r}; expected val/ instead of test/: a model chosen by the test split can't be "
            "tested on it"
        )
    if metric == SPLIT or metric.startswith(("min:", "max:")):
        raise ValueError(f"got {text!r}; {EXPECTED}")
    return metric


def _times(text: str, times: str) -> int:
    if int(times) < 1:
        raise ValueError(f"got {text!r}; expected 'for N' with N of 1 or more")
    return int(times)


def _bound(text: str, bound: str) -> float:
    try:
        number = float(bound)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"got {text!r}, where {bound!r} is not a finite number; {EXPECTED}")
    return number


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _checked(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(parse(text).text for text in texts)


StopWhen = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_checked)]


def check_evaluated(texts: tuple[str, ...], evaluate_every: int | str) -> None:
    """Reject rules over evaluations if no evaluation comes between the first iteration and the last.

    Raises:
        ValueError: a rule reads evaluations, but `evaluate_every` is not a number of iterations.
    """
    for rule in map(parse, texts):
        reads_them = not isinstance(rule, Diagnosed) and rule.metric.startswith(SPLIT)
        if reads_them and not (isinstance(evaluate_every, int) and evaluate_every):
            raise ValueError(
                f"stop_when={rule.text!r} reads evaluations: got evaluate_every={evaluate_every}, expected "
                "a number of iterations"
            )
