"""Numbers of a run so far, as rules read them: iterations, evaluations, settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

EARLY = 5  # first iterations, with which later ones are compared
WINDOW = 10  # last iterations, whose median hides single batches
FEWEST = 5  # least numbers for a median

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """A run so far.

    Example: `History([{"iteration": 1, "entropy": 2.1}, …], [{"epoch": 0, "metrics": {"reward/mean": 0.2}}],
    {"algorithm.learning_rate": 1e-3})`
    """

    rows: Sequence[Row]  # one for each iteration, in order
    evaluations: Sequence[Row] = ()  # evaluations of the validation split, in order
    settings: Mapping[str, Any] = field(default_factory=dict)  # values by dotted key; {}: unknown

    @property
    def iteration(self) -> int:
        """Return the last iteration, 0 before the first."""
        return int(self.rows[-1]["iteration"]) if self.rows else 0

    def values(self, key: str) -> list[float]:
        """Return a column's finite numbers, in order."""
        return numbers(row.get(key) for row in self.rows)

    def first(self, key: str) -> float | None:
        """Return a column's first number, because a column may change within five iterations."""
        return next((number for row in self.rows for number in numbers([row.get(key)])), None)

    def early(self, key: str) -> float | None:
        """Return the median of a column's first numbers; None if there are fewer than FEWEST."""
        column = numbers(row.get(key) for row in self.rows[:EARLY])
        return median(column) if len(column) >= FEWEST else None

    def late(self, key: str) -> float | None:
        """Return the median of a column's last numbers; None if there are fewer than FEWEST."""
        column = self.window(key)
        return median(column) if len(column) >= FEWEST else None

    def window(self, key: str) -> list[float]:
        """Return a column's last numbers."""
        return numbers(row.get(key) for row in self.rows[-WINDOW:])

    def before(self, key: str) -> float | None:
        """Return the median of the window before the last one; None if it has fewer than FEWEST numbers."""
        column = numbers(row.get(key) for row in self.rows[-2 * WINDOW : -WINDOW])
        return median(column) if len(column) >= FEWEST else None

    def median(self, key: str) -> float | None:
        """Return the median of a whole column, even of few numbers; None for less than two."""
        column = self.values(key)
        return median(column) if len(column) > 1 else None

    @property
    def has_moved_on(self) -> bool:
        """Tell whether the first and the last iterations are different, so that they show a trend."""
        return self.iteration - int(self.rows[0]["iteration"]) + 1 >= EARLY + WINDOW if self.rows else False

    def until(self, iteration: int) -> "History":
        """Return the run up to `iteration`, which is what a warning in training could read."""
        return History(
            [row for row in self.rows if row["iteration"] <= iteration],
            [row for row in self.evaluations if row["epoch"] <= iteration],
            self.settings,
        )


def numbers(values: Any) -> list[float]:
    """Return the finite numbers among `values`.

    >>> numbers([1, None, float("nan"), "n/a", True, 0.5])
    [1.0, 0.5]
    """
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
