"""Names of the numbers of a mixture's parts, such as `parts/easy/reward/mean`."""

from collections.abc import Mapping

PARTS = "parts"  # beginning of the names


def named(part: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Return a part's numbers under the run's names for them.

    >>> named("easy", {"reward/mean": 0.5})
    {'parts/easy/reward/mean': 0.5}
    """
    return {f"{PARTS}/{part}/{name}": value for name, value in numbers.items()}


def split_name(name: str) -> tuple[str, str] | None:
    """Split a number's name into the part and the number's own name; None where it is no part's.

    >>> split_name("parts/easy/reward/mean"), split_name("reward/mean")
    (('easy', 'reward/mean'), None)
    """
    root, _, rest = name.partition("/")
    part, _, own = rest.partition("/")
    return (part, own) if root == PARTS and own else None
