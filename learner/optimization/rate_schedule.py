"""Schedule of the learning rate, and its change if a resumed run has another length."""

import math
from typing import Literal

from learner.settings import LearnerSettings

Schedule = Literal["constant", "linear", "cosine"]


def schedule_factor(
    schedule: Schedule, iteration: int, iterations: int, warmup: int, end: float = 0.0
) -> float:
    """Return the factor by which the learning rate is multiplied in iteration 1, 2 … `iterations`.

    Args:
        end: the factor that a falling schedule reaches after the last iteration.

    >>> [schedule_factor("linear", i, 4, 0) for i in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [schedule_factor("linear", i, 4, 0, end=0.5) for i in (1, 2, 3, 4)]
    [1.0, 0.875, 0.75, 0.625]
    >>> schedule_factor("constant", 1, 100, 10)
    0.1
    """
    if iteration <= warmup:
        return iteration / warmup
    progress = min(1.0, (iteration - warmup - 1) / max(1, iterations - warmup))
    if schedule == "constant":
        return 1.0
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return end + (1.0 - end) * left


def moved(settings: LearnerSettings, iteration: int, before: int, now: int) -> str | None:
    """Say how the rate changes from `iteration` on if a run of `before` iterations has `now`; None: it stays.

    >>> (moved(LearnerSettings(lr_schedule="linear"), 3, 4, 8) or "").rpartition(": ")[-1]
    'iteration 3 has 0.75 of the learning rate, not 0.5'
    """
    warmup = settings.warmup_iterations
    # The next iteration's rate may stay, for example in a warm-up, while later rates change.
    for later in (iteration, (iteration + now) // 2, now) if iteration <= now else ():
        was, becomes = (
            f"{schedule_factor(settings.lr_schedule, later, end, warmup, settings.lr_end):.3g}"
            for end in (before, now)
        )
        if was != becomes:
            return (
                f"learner.lr_schedule={settings.lr_schedule} falls until iteration {now} now, no longer "
                f"{before}: iteration {later} has {becomes} of the learning rate, not {was}"
            )
    return None
