"""Groups of samples: all answers to one prompt, which some rewards must see together."""

from collections.abc import Sequence

from contracts.scores import Answer, Sample


def by_group(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the places of each group's samples, in the order of the groups' first samples.

    >>> by_group([Sample("a", group="p"), Sample("b", group="q"), Sample("c", group="p")])
    [[0, 2], [1]]
    """
    found: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        found.setdefault(sample.group, []).append(place)
    return list(found.values())


def whole_groups(samples: Sequence[Sample], answers: list[Answer], label: str) -> list[list[int]]:
    """Return the places of the groups without errors; write into the others' answers what a member lacks.

    Args:
        answers: of each sample, in which an error says why it can't be scored.
        label: the reward's.
    """
    whole = []
    for group in by_group(samples):
        errors = [error for place in group if (error := answers[place][1])]
        if not errors:
            whole.append(group)
            continue
        count = f"{len(errors)} of the {len(group)} samples in this one's group can't be scored"
        told = f"reward {label}: it scores whole groups, and {count}; the first: {errors[0]}"
        for place in group:
            answers[place] = (None, answers[place][1] or told)
    return whole
