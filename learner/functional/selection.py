"""Choose the examples of an epoch by their advantages or rewards and a seed.

These are the sampling strategies of Baheti et al. 2024 (arXiv 2305.14718), with a seed and each response's
advantage. They use NumPy, like the order of minibatches.
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
    """Selection of one epoch: _E draws, as indices into the data set.

    Example: of four examples with advantages (.5, -.1, .3, 0), `good_priority` keeps two, and may draw

        Selection(order_E=[0, 0], num_examples=4, num_kept=2)     share_dropped == 0.5
    """

    order_E: NDArray[np.int64]
    num_examples: int  # examples that the strategy considers
    num_kept: int  # examples that it can draw; also the number of draws

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
    """Choose one epoch's examples, in order; the same seed and epoch give the same choice.

    - None            every good example once
    - good_random     every good example with a priority above 0 once
    - good_priority   good examples, drawn with replacement in proportion to max(priority, 0)
    - all_priority    drawn in the same way from all examples, including rejected responses

    The loss also multiplies by the advantage. So with a priority strategy an example's share of the gradient
    grows with its square, as published.

    Args:
        priorities_M: each example's advantage (the A-LoL family) or reward (wbc, R-GOLD, R-LoL).
        good_M: False for rejected responses; None: all are good.

        Raises:
            LearnerError: a priority is NaN or infinite, or the strategy needs one above 0 but none is.
    """
    require_finite(priorities_M, "advantages or rewards")
    is_seen_M = np.ones(len(priorities_M), bool) if good_M is None or strategy == "all_priority" else good_M
    seen = np.flatnonzero(is_seen_M)
    generator = np.random.default_rng([seed, epoch])
    if strategy is None:
        return Selection(generator.permutation(seen), len(seen), len(seen))
    require_positive(priorities_M[seen], f"advantages or rewards that sampling_strategy={strategy} can draw")
    kept = seen[priorities_M[seen] > 0]
    if strategy == "good_random":
        return Selection(generator.permutation(kept), len(seen), len(kept))
    cumulative = np.cumsum(priorities_M[kept], dtype=np.float64)
    drawn = np.searchsorted(cumulative, cumulative[-1] * generator.random(len(kept)), side="right")
    # the product may round up to the whole sum, beyond which no example lies
    return Selection(kept[drawn.clip(max=len(kept) - 1)], len(seen), len(kept))


def require_finite(values_M: NDArray[np.floating], what: str) -> None:
    """Check that all values are finite.

    Raises:
        LearnerError: values are not finite; the message counts them and shows the first.
    """
    wrong = np.flatnonzero(~np.isfinite(values_M))
    if len(wrong):
        raise LearnerError(
            f"{len(wrong)} of {len(values_M)} {what} are NaN or infinite, the first is {values_M[wrong[0]]}, "
            f"of example {wrong[0]}; finite numbers are expected: score them again, or leave them out"
        )


def require_positive(values_M: NDArray[np.floating], what: str) -> None:
    """Check that at least one value is above 0.

    Raises:
        LearnerError: no value is above 0, so there is nothing to learn from.
    """
    if not (values_M > 0).any():
        highest = f", the highest is {values_M.max():.4g}" if len(values_M) else ""
        raise LearnerError(
            f"0 of {len(values_M)} {what} are above 0{highest}, and nothing is learned from the others. An "
            "advantage is reward - value: are both made of the same rewards, and is the value's error small?"
        )
