"""Rates of GPUs by name, from their makers' data sheets."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """Rates of one GPU.

    Example: an H100 of 80 GB with SXM: `Card(989e12, 3.35e12)`
    """

    flops: float  # dense bfloat16 operations a second
    bytes_per_s: float  # bandwidth between its processors and its memory


# The first name that fits counts, so "H100 PCIe" comes before "H100".
CARDS = {
    "B200": Card(2250e12, 8.0e12),
    "H200": Card(989e12, 4.8e12),
    "H100 PCIe": Card(756e12, 2.0e12),
    "H100 NVL": Card(835e12, 3.9e12),
    "H100": Card(989e12, 3.35e12),
    "A100": Card(312e12, 1.55e12),  # figures of the 40 GB card, whose memory is slower
    "L40S": Card(362e12, 0.864e12),
    "L40": Card(181e12, 0.864e12),
    "RTX 4090": Card(165e12, 1.008e12),
    "A10": Card(125e12, 0.6e12),
    "L4": Card(121e12, 0.3e12),
}


def card_of(name: str) -> Card | None:
    """Return the rates of a GPU by its driver's name for it; None: it is not in the table.

    A laptop's card has the name of a faster one, so it has no rates.

    >>> card_of("NVIDIA H100 80GB HBM3")
    Card(flops=989000000000000.0, bytes_per_s=3350000000000.0)
    """
    if "Laptop" in name:
        return None
    return next((card for known, card in CARDS.items() if re.search(rf"\b{known}\b", name)), None)
