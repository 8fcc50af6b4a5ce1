"""The entropy bonus's coefficient, fixed or moved towards a target entropy.

The rule is Skywork-OR1's (He et al. 2025, arXiv 2505.22312, §4), as in trl. The coefficient grows by a step
after an update whose texts have at most the target entropy. It falls by a step after other updates. The bonus
acts only while the entropy is at most the target, so it never pushes the entropy further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EntropyRule:
    """Rule of an algorithm's entropy bonus.

    Example: grow from 0 while texts have at most 0.3 nats a token: `EntropyRule(0.0, target=0.3)`
    """

    coefficient: float  # coefficient at the start; without a target, it stays
    target: float | None = None  # nats a token; None: the coefficient stays
    step: float = 0.005  # change of the coefficient after each update
    highest: float = 1.0  # highest coefficient; the lowest is 0

    @property
    def adds_bonus(self) -> bool:
        """Return whether an update may have a bonus."""
        return bool(self.coefficient) or self.target is not None

    def following(self, coefficient: float, entropy: float) -> float:
        """Return the coefficient after an update whose texts have this entropy, nats a token.

        >>> rule = EntropyRule(0.01, target=0.3, step=0.005)
        >>> round(rule.following(0.01, 0.25), 6), round(rule.following(0.01, 0.35), 6)
        (0.015, 0.005)
        """
        if self.target is None:
            return coefficient
        if entropy <= self.target:
            return min(coefficient + self.step, self.highest)
        return max(coefficient - self.step, 0.0)


class EntropyBonus:
    """State of the rule in a run: the coefficient and the last measured entropy."""

    def __init__(self, rule: EntropyRule) -> None:
        self.rule = rule
        self.coefficient = rule.coefficient
        self.entropy: float | None = None  # None: no update has measured one

    @property
    def now(self) -> float:
        """Return the factor of the entropy in the next update's loss.

        With a target, the first update has no bonus, because no entropy is measured yet.
        """
        if self.rule.target is None:
            return self.coefficient
        acts = self.entropy is not None and self.entropy <= self.rule.target
        return self.coefficient if acts else 0.0

    def after(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Take up an update's metrics; return the bonus's factor in that update.

        An update without `entropy`, such as one on a data set's texts, changes nothing.
        """
        if not self.rule.adds_bonus:
            return {}
        acted = self.now
        if (entropy := metrics.get("entropy")) is not None:
            self.entropy = entropy
            self.coefficient = self.rule.following(self.coefficient, entropy)
        return {"entropy_coefficient": acted}

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, for JSON."""
        return {"coefficient": self.coefficient, "entropy": self.entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Without a target, the settings' coefficient holds."""
        if self.rule.target is not None and state:
            self.coefficient, self.entropy = state["coefficient"], state["entropy"]
