"""Quotas: choose the part of a mixture for the next prompt, so that shares follow the weights."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm


class Quotas:
    """Draws of parts in proportion to their weights, exact at every moment.

    After t draws of K parts, a part with share w of the weights has been drawn w·t times, to within
    1 - 1/(2K - 2). Nothing is random, and the counts of past draws are the whole state.

    Source: Tijdeman 1980, "The chairman assignment problem", Discrete Mathematics 32.

    Example:

        >>> quotas = Quotas([3, 1])
        >>> [quotas.next() for _ in range(8)]
        [0, 0, 1, 0, 0, 0, 1, 0]
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not weights or min(weights) <= 0:
            raise ValueError(f"quotas need weights above 0, got {list(weights)}")
        exact = [Fraction(str(weight)) for weight in weights]
        unit = lcm(*(weight.denominator for weight in exact))
        self._weights = [int(weight * unit) for weight in exact]
        self._whole = sum(self._weights)
        self.counts = [0] * len(weights)

    def next(self) -> int:
        """Return the part of the next draw: the due part that would be late first."""
        time, slack = sum(self.counts) + 1, 2 * len(self._weights) - 2
        late = [
            slack * (weight * time - count * self._whole)  # in units of 1 / (slack · whole) draws
            for weight, count in zip(self._weights, self.counts, strict=True)
        ]
        due = [part for part, units in enumerate(late) if units >= self._whole or not slack]
        deadline = (slack - 1) * self._whole
        earliest = min(due, key=lambda part: (Fraction(deadline - late[part], self._weights[part]), part))
        self.counts[earliest] += 1
        return earliest


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Return each part's share of the draws.

    >>> shares({"easy": 3.0, "hard": 1.0})
    {'easy': 0.75, 'hard': 0.25}
    """
    whole = sum(weights.values())
    return {part: weight / whole for part, weight in weights.items()}
