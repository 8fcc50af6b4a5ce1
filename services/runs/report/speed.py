"""Facts of a run's speed: tokens a second, and the share of the GPU's operations."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TOKENS = {"written": "throughput/generated_tokens_per_s", "trained on": "throughput/trained_tokens_per_s"}
ALL_PASSES, TRAINING = "throughput/mfu_all_passes", "throughput/mfu"


def speed(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (label, words), medians over the iterations, for all quantities that were measured.

    >>> row = {"throughput/generated_tokens_per_s": 1200.0, TRAINING: 0.29, ALL_PASSES: 0.44}
    >>> list(speed([row]))  # doctest: +NORMALIZE_WHITESPACE
    [('tokens written a second', '1,200'),
     ("of the GPU's operations", '44 % in all passes, 29 % in training')]
    """
    for label, name in TOKENS.items():
        if rates := measured(rows, name):
            yield f"tokens {label} a second", f"{statistics.median(rates):,.0f}"
    if shares := measured(rows, ALL_PASSES):
        all_passes, training = statistics.median(shares), statistics.median(measured(rows, TRAINING))
        yield (
            "of the GPU's operations",
            f"{100 * all_passes:.0f} % in all passes, {100 * training:.0f} % in training",
        )


def measured(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return a metric's values other than 0, from the rows that have it."""
    return [float(value) for row in rows if (value := row.get(name))]
