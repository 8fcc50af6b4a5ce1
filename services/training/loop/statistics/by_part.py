"""Metrics of each part of a mixture, under names such as `parts/easy/reward/mean`."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.clients import Graders
from contracts.rollout import PART, Rollout
from contracts.scores import Sample
from reward_servers.settings import Part
from reward_servers.shaping import shares
from services.runs.part_names import named
from services.training.loop.statistics.at_k import AtK
from services.training.loop.statistics.rollout_statistics import numbers_at_k, reward_statistics


def training_by_part(
    rollouts: Sequence[Rollout], rewards: Mapping[str, tuple[Part, ...]]
) -> dict[str, float]:
    """Return the reward statistics of an iteration's rollouts, and the number of prompts, for each part.

    Args:
        rewards: rewards of each part.
    """
    metrics: dict[str, float] = {}
    for part, own_rewards in rewards.items():
        of_part = [rollout for rollout in rollouts if rollout.prompt.part == part]
        numbers = {
            "prompts": float(len({rollout.group for rollout in of_part})),
            **reward_statistics(of_part),
        }
        numbers |= shares(own_rewards, [row for rollout in of_part for row in rollout.judged_parts])
        metrics |= named(part, numbers)
    return metrics


def measure_parts(
    parts: Sequence[str],
    rollouts: Sequence[Rollout],
    samples: Sequence[Sample],
    rows: Sequence[dict[str, Any]],
    rewards: Graders,
    at_k: AtK | None,
) -> dict[str, float]:
    """Compute each part's statistics and metrics over its texts, and write them into the rows.

    If a part's graders find answers, its rows get the answers for a vote.

    Args:
        samples: texts that metrics read, one for each rollout.
        rows: predictions, one for each rollout.
        at_k: rule for numbers over several texts per prompt; None: one text per prompt.
    """
    metrics: dict[str, float] = {}
    for part in parts:
        places = [place for place, rollout in enumerate(rollouts) if rollout.prompt.part == part]
        if not places:
            continue
        of_part, own_rows = [rollouts[place] for place in places], [rows[place] for place in places]
        read = [samples[place] for place in places]
        values = rewards.compute_metrics(read, part)
        for index, row in enumerate(own_rows):
            row[PART] = part
            row |= {key: "n/a" if value.rows is None else value.rows[index] for key, value in values.items()}
        numbers = reward_statistics(of_part) | {key: value.corpus for key, value in values.items()}
        if at_k is not None:
            answers = rewards.answers([sample.response for sample in read], part)
            if answers is not None:
                for row, answer in zip(own_rows, answers, strict=True):
                    row["answer"] = answer
            if any(at_k.by in row for row in own_rows):  # else only other parts have the metric
                numbers |= numbers_at_k(at_k, of_part, own_rows, None)
        metrics |= named(part, numbers)
    return metrics
