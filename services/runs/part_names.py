"""Names of the metrics of a mixture's parts, such as `parts/easy/reward/mean`."""

from collections.abc import Mapping

PARTS = "parts"  # beginning of the names


def named(part: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Prefix a part's metrics with its name.

    >>> named("easy", {"reward/mean": 0.5})
    {'parts/easy/reward/mean': 0.5}
    """
    return {f"{PARTS}/{part}/{name}": value for name, value in numbers.items()}


def split_name(name: str) -> tuple[str, str] | None:
    """Split a metric's name into the part and the part's metric; None for other metrics.

    >>> split_name("parts/easy/reward/mean"), split_name("reward/mean")
    (('easy', 'reward/mean'), None)
    """
    root, _, rest = name.partition("/")
    part, _, metric = rest.partition("/")
    return (part, metric) if root == PARTS and metric else None
