"""Which examples of a data set an epoch trains on, by their advantages or rewards; from a seed alone.

The sampling strategies of Baheti et al. 2024 (arXiv 2305.14718), seeded, and each response with its own
advantage. NumPy, as the order of minibatches is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from contracts.errors import LearnerError

SamplingStrategy = Literal["good_priority", "good_random", "all_priority"]


@dataclass(frozen=True, slots=True)
class Selection:
    """One epoch. _E draws of the epoch, places in the data set.

    Example: of four examples with advantages (.5, -.1, .3, 0), `good_priority` keeps two, and may draw

        Selection(order_E=[0, 0], num_examples=4, num_kept=2)     share_dropped == 0.5
    """

    order_E: NDArray[np.int64]
    num_examples: int  # that the strategy looks at
    num_kept: int  # that it can draw; an epoch has as many draws

    @property
    def share_dropped(self) -> float:
        return 1.0 - self.num_kept / self.num_examples


def select_epoch(
    priorities_M: NDArray[np.floating],
    strategy: SamplingStrategy | None,
    *,
    seed: int,
    epoch: int,
    good_M: NDArray[np.bool_] | None = None,
) -> Selection:
    """The examples of one epoch, in order; the same for the same seed and epoch.

    - None            every good example once
    - good_random     every good example with a priority above 0 once
    - good_priority   good examples, drawn with replacement in proportion to max(priority, 0)
    - all_priority    the same among all, the rejected ones too

    The loss multiplies by the advantage as well: with a priority strategy an example's say in the gradient is
    as its square, as published.

    Args:
        priorities_M: advantages (the A-LoL family) or rewards (wbc, R-GOLD, R-LoL), one an example.
        good_M: which examples are no rejected responses; None: all.

    Raises:
        LearnerError: a priority is NaN or infinite, or a strategy asks for positive ones and there is none.
    """
    require_finite(priorities_M, "advantages or rewards")
    is_seen_M = np.ones(len(priorities_M), bool) if good_M is None or strategy == "all_priority" else good_M
    seen = np.flatnonzero(is_seen_M)
    generator = np.random.default_rng([seed, epoch])
    if strategy is None:
        return Selection(generator.permutation(seen), len(seen), len(seen))
    require_positive(priorities_M[seen], f"advantages or rewards that sampling_strategy={strategy} looks at")
    kept = seen[priorities_M[seen] > 0]
    if strategy == "good_random":
        return Selection(generator.permutation(kept), len(seen), len(kept))
    cumulative = np.cumsum(priorities_M[kept], dtype=np.float64)
    drawn = np.searchsorted(cumulative, cumulative[-1] * generator.random(len(kept)), side="right")
    # of the smallest numbers the product may round up to the very sum, beyond which there is nobody
    return Selection(kept[drawn.clip(max=len(kept) - 1)], len(seen), len(kept))


def require_finite(values_M: NDArray[np.floating], what: str) -> None:
    """Raises LearnerError with the number of NaN and infinite values, and where the first one is."""
    wrong = np.flatnonzero(~np.isfinite(values_M))
    if len(wrong):
        raise LearnerError(
            f"{len(wrong)} of {len(values_M)} {what} are NaN or infinite, the first is {values_M[wrong[0]]}, "
            f"of example {wrong[0]}; finite numbers are expected: score them again, or leave them out"
        )


def require_positive(values_M: NDArray[np.floating], what: str) -> None:
    """Raises LearnerError where none is above 0: there would be nothing to learn from."""
    if not (values_M > 0).any():
        highest = f", the highest is {values_M.max():.4g}" if len(values_M) else ""
        raise LearnerError(
            f"0 of {len(values_M)} {what} are above 0{highest}, and nothing is learned from the others. An "
            "advantage is reward - value: are both made of the same rewards, and is the value's error small?"
        )
