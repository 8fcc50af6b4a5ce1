"""A user's metrics of each iteration's rollouts, logged with the run's metrics (OpenRL's `VecInfo`)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat

from contracts.components import create
from contracts.errors import InputError
from contracts.rollout import Rollout
from services.runs.tracking.mlflow_run import legal_name


class Measure(Protocol):
    """A user's class. One object is created, and called once an iteration, in order.

    It may keep state between iterations; a resume loses that state.
    """

    def measure(self, rollouts: Sequence[Rollout]) -> Mapping[str, float]:
        """Return numbers by the names for the log; leave out undefined ones.

        Example: `{"mine/questions": 0.25}` if one of four scored rollouts ends in "?".
        """
        ...


class Measures:
    """All measures of a run, from a name, a mapping with a name and options, or a list of these.

    Example: `Measures(["my_module:Questions", {"name": "my_module:Words", "window": 5}])`

    Raises:
        InputError: a class can't be imported, lacks `measure`, or does not take these options.
    """

    def __init__(self, measures: Any = ()) -> None:
        listed = () if measures is None else measures if isinstance(measures, list | tuple) else (measures,)
        entries = [{"name": entry} if isinstance(entry, str) else entry for entry in listed]
        for entry in entries:
            if not isinstance(entry, Mapping) or ":" not in str(entry.get("name")):
                raise InputError(
                    f"measures: got {entry!r}; expected package.module:Class or FILE.py:Class, or a "
                    f"mapping with that name and options"
                )
        self.entries: tuple[dict[str, Any], ...] = tuple(dict(entry) for entry in entries)  # for config.yaml
        self._made = [_made(entry) for entry in self.entries]

    def __call__(self, rollouts: Sequence[Rollout], taken: Iterable[str] = ()) -> dict[str, float]:
        """Return the numbers of all measures for one iteration's scored rollouts.

        Args:
            taken: names that the run logs already.

            Raises:
            InputError: a measure raised an error, or did not return finite numbers under free, legal names.
        """
        values: dict[str, float] = {}
        names = set(taken)
        for entry, measure in zip(self.entries, self._made, strict=True):
            where = f"measure={entry['name']}"
            try:
                returned = measure.measure(rollouts)
            except Exception as error:  # a user's code may raise anything
                raise InputError(f"{where}: measure() raised {type(error).__name__}: {error}") from error
            if not isinstance(returned, Mapping):
                raise InputError(
                    f"{where}: measure() returned {returned!r:.200}; expected a mapping of names to numbers, "
                    f"such as {{'mine/share': 0.5}}"
                )
            for name, value in returned.items():
                _check_name(where, name, names)
                names.add(name)
                values[name] = finite_number(where, name, value)
        return values


def _made(entry: Mapping[str, Any]) -> Measure:
    options = {str(key): option for key, option in entry.items() if key != "name"}
    made: Measure = create("measure", entry["name"], options, {}, Measure)
    return made


def _check_name(where: str, name: Any, taken: set[str]) -> None:
    if not isinstance(name, str) or legal_name(name) != name:
        legal = f", such as {legal_name(name)!r}" if isinstance(name, str) else ""
        raise InputError(
            f"{where}: got {name!r} for a number's name; expected letters, digits, blanks and _ . - with "
            f"/ between its parts{legal}"
        )
    if name in taken:
        raise InputError(f"{where}: '{name}' is logged already; expected another name, such as mine/{name}")


def finite_number(where: str, name: str, value: Any) -> float:
    """Return a user's number as a float.

    Raises:
        InputError: the value is not a number, or not finite.
    """
    number = float(value) if isinstance(value, SupportsFloat) else math.nan
    if not math.isfinite(number):
        raise InputError(
            f"{where}: {name} is {value!r:.200}; expected a finite number. Leave out undefined numbers"
        )
    return number
