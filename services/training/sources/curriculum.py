"""A curriculum by pass rate. Prompts that are always or never solved teach little, and come less often.

    pass rate   0     1/8    1/2    7/8     1        (unanswered prompts come in every epoch)
    share      0.1   0.49     1    0.49    0.1       of the epochs in which the prompt comes

A group-relative advantage needs answers with different rewards. With a pass rate of r their variance is
r (1 - r), which is largest at 1/2.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class PassRates:
    """Running pass rates of prompts, by their index.

    The first group of answers sets a prompt's rate; each further group moves it halfway.

    Args:
        solved_at: least reward of a correct answer.
        least_share: share of the epochs for a prompt that is always or never solved.

    Example:

        >>> rates = PassRates(solved_at=1.0, least_share=0.1)
        >>> rates.share(7)
        1.0
        >>> rates.learn(7, [0.0, 0.0, 0.5, 0.0]), rates.share(7)
        (None, 0.1)
        >>> rates.learn(7, [1.0, 1.0, 1.0, 1.0]), rates.share(7)
        (None, 1.0)
    """

    def __init__(self, solved_at: float, least_share: float) -> None:
        self._solved_at, self._least_share = solved_at, least_share
        self._rates: dict[int, float] = {}

    def learn(self, index: int, rewards: Sequence[float]) -> None:
        """Update a prompt's pass rate with the rewards of its answers."""
        rate = sum(reward >= self._solved_at for reward in rewards) / len(rewards)
        self._rates[index] = (self._rates.get(index, rate) + rate) / 2

    def share(self, index: int) -> float:
        """Return the share of the epochs in which a prompt comes."""
        rate = self._rates.get(index, 0.5)
        return self._least_share + (1 - self._least_share) * 4 * rate * (1 - rate)

    def metrics(self) -> dict[str, float]:
        """Return the number of prompts with a pass rate, their mean rate, and their mean share."""
        count = len(self._rates)
        if not count:
            return {}
        return {
            "curriculum/prompts": float(count),
            "curriculum/pass_rate": sum(self._rates.values()) / count,
            "curriculum/share": sum(map(self.share, self._rates)) / count,
        }

    def state(self) -> dict[str, Any]:
        return {"prompts": list(self._rates), "rates": list(self._rates.values())}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rates = dict(zip(state.get("prompts", ()), state.get("rates", ()), strict=True))
