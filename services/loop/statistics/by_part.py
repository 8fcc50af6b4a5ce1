"""Numbers of each part of a mixture, under names such as `parts/easy/reward/mean`."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.clients import Graders
from contracts.rollout import PART, Rollout
from contracts.scores import Sample
from reward_servers.settings import Part
from reward_servers.shaping import shares
from services.loop.statistics.at_k import AtK
from services.loop.statistics.rollout_statistics import numbers_at_k, reward_statistics
from services.runs.part_names import named


def training_by_part(
    rollouts: Sequence[Rollout], rewards: Mapping[str, tuple[Part, ...]]
) -> dict[str, float]:
    """Return the reward statistics of an iteration's rollouts, and the number of prompts, for each part.

    Args:
        rewards: those of each part.
    """
    found: dict[str, float] = {}
    for part, own_rewards in rewards.items():
        own = [rollout for rollout in rollouts if rollout.prompt.part == part]
        numbers = {"prompts": float(len({rollout.group for rollout in own})), **reward_statistics(own)}
        numbers |= shares(own_rewards, [row for rollout in own for row in rollout.judged_parts])
        found |= named(part, numbers)
    return found


def measure_parts(
    parts: Sequence[str],
    rollouts: Sequence[Rollout],
    samples: Sequence[Sample],
    rows: Sequence[dict[str, Any]],
    rewards: Graders,
    at_k: AtK | None,
) -> dict[str, float]:
    """Compute each part's statistics and metrics over its own texts, and write them into the rows.

    Rows of a part whose graders find answers get these, too, for a vote.

    Args:
        samples: what metrics read of each rollout.
        rows: predictions, one for each rollout.
        at_k: rule for the numbers of several texts per prompt, if there are several.
    """
    metrics: dict[str, float] = {}
    for part in parts:
        places = [place for place, rollout in enumerate(rollouts) if rollout.prompt.part == part]
        if not places:
            continue
        own, own_rows = [rollouts[place] for place in places], [rows[place] for place in places]
        read = [samples[place] for place in places]
        values = rewards.compute_metrics(read, part)
        for index, row in enumerate(own_rows):
            row[PART] = part
            row |= {key: "n/a" if value.rows is None else value.rows[index] for key, value in values.items()}
        numbers = reward_statistics(own) | {key: value.corpus for key, value in values.items()}
        if at_k is not None:
            found = rewards.answers([sample.response for sample in read], part)
            if found is not None:
                for row, answer in zip(own_rows, found, strict=True):
                    row["answer"] = answer
            if any(at_k.by in row for row in own_rows):  # a metric of other parts alone
                numbers |= numbers_at_k(at_k, own, own_rows, None)
        metrics |= named(part, numbers)
    return metrics
