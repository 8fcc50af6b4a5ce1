"""Score of 1 if the text holds a date such as 2024-01-31 (four digits, two, two), else 0."""

import re
from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from reward_servers.graders.grader import Grader

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Dates(Grader):
    """RL4LMs' `sentences_with_dates`: the pattern alone counts, even for a day that no calendar has."""

    key: ClassVar[str] = "synthetic/dates_in_text"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [has_date(sample.text) for sample in samples]


def has_date(text: str) -> float:
    """Return 1.0 if the text holds a date, else 0.0.

    >>> has_date("due on 2024-01-31."), has_date("due on 31/01/2024")
    (1.0, 0.0)
    """
    return float(DATE.search(text) is not None)
