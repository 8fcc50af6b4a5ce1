"""Groups of samples, all answers to one prompt, for rewards that must see them together."""

from collections.abc import Sequence

from contracts.scores import Answer, Sample


def by_group(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the places of each group's samples, in the order of the groups' first samples.

    >>> by_group([Sample("a", group="p"), Sample("b", group="q"), Sample("c", group="p")])
    [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(place)
    return list(groups.values())


def whole_groups(samples: Sequence[Sample], answers: list[Answer], label: str) -> list[list[int]]:
    """Return the places of the groups without errors; write a member's error into all its group's answers.

    Args:
        answers: each sample's answer; an error gives the reason why it can't be scored.
        label: the reward's.
    """
    whole = []
    for group in by_group(samples):
        errors = [error for place in group if (error := answers[place][1])]
        if not errors:
            whole.append(group)
            continue
        count = f"{len(errors)} of the {len(group)} samples in this one's group can't be scored"
        message = f"reward {label}: it scores whole groups, and {count}; the first: {errors[0]}"
        for place in group:
            answers[place] = (None, answers[place][1] or message)
    return whole
