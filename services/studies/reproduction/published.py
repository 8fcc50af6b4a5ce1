"""Published values, from conf/recipe/published.csv: each with its source and how sure it is.

A cell without a line was looked for and not found, and is never filled from memory.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from contracts.errors import InputError, there_are
from services.studies.reproduction.recipe import FOLDER

FILE = FOLDER / "published.csv"
NOT_FOUND = "not found"
CERTAINTIES = {
    "V": "seen in the source itself",
    "P": "in the paper's running text",
    "2": "second hand",
    "F": "read off a figure",
    "C": "computed from the source's numbers",
}
By = Literal["paper", "earlier", "log", "outsider"]  # the system's own, its older versions or logs; others


@dataclass(frozen=True, slots=True)
class Published:
    """One published value, in its own scale.

    Example: `Published("imdb", "ppo", "sentiment", "paper", "0.602", None, "2", "GRUE card", "…-imdb-ppo-s")`
    """

    recipe: str
    row: str
    metric: str
    by: By
    text: str  # the value with the digits of its source
    error: float | None
    certainty: str
    source: str
    place: str  # where the project's collection of published values has it

    @property
    def value(self) -> float:
        return float(self.text)

    @property
    def rounding(self) -> float:
        """Return half a unit of the last digit.

        >>> Published("imdb", "ppo", "sentiment", "paper", "0.602", None, "2", "", "").rounding
        0.0005
        """
        _, _, decimals = self.text.partition(".")
        return float(f"5e-{len(decimals) + 1}")


@cache
def published() -> tuple[Published, ...]:
    """Read the file.

    Raises:
        InputError: a line is wrong.
    """
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_line(number, row) for number, row in enumerate(csv.DictReader(file), start=2))


def values_of(recipe: str, row: str, metric: str) -> Sequence[Published]:
    return [
        value for value in published() if (value.recipe, value.row, value.metric) == (recipe, row, metric)
    ]


def _line(number: int, row: dict[str, str]) -> Published:
    where, by = f"{FILE.name}, line {number}", row["by"]
    if row["certainty"] not in CERTAINTIES:
        raise InputError(f"{where}, column certainty: got {row['certainty']!r}; {there_are(CERTAINTIES)}")
    if by not in get_args(By):
        raise InputError(f"{where}, column by: got {by!r}; {there_are(get_args(By))}")
    try:
        error = float(row["error"]) if row["error"] else None
        float(row["value"])
    except ValueError:
        raise InputError(f"{where}: expected numbers, got {row['value']!r} and {row['error']!r}") from None
    return Published(
        *(row["recipe"], row["row"], row["metric"], by, row["value"], error),  # type: ignore[arg-type]
        *(row["certainty"], row["source"], row["place"]),
    )
