"""Delay the replacement of a lost worker, longer after each loss in a row."""

from dataclasses import dataclass

FIRST_S, MOST_S = 1.0, 60.0
FORGIVEN_S = 300.0  # a worker that lasted this long resets the count


@dataclass(slots=True)
class Backoff:
    """Losses of one place, and the delays that they cause.
    >>> backoff = Backoff()
    >>> [backoff.lost(lasted_s=2.0) for _ in range(8)]
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    >>> backoff.lost(lasted_s=3600.0)
    1.0
    """

    num_losses: int = 0  # losses in a row

    def lost(self, lasted_s: float) -> float:
        """Count a loss; return the seconds until the next worker may start."""
        self.num_losses = 1 if lasted_s >= FORGIVEN_S else self.num_losses + 1
        return float(min(FIRST_S * 2 ** (self.num_losses - 1), MOST_S))
