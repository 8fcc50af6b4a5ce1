"""Statistics of rollouts: rewards, lengths, episodes, and metrics over several texts per prompt."""

import statistics
from collections.abc import Sequence
from typing import Any

from contracts.roles import by_role
from contracts.rollout import UNFINISHED, Rollout
from services.runs.standard_errors import standard_error
from services.training.loop.collecting import Collected
from services.training.loop.statistics.at_k import AtK


def reward_statistics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return means of rewards, of their parts and named values, and of lengths, and a standard error.

    With a single prompt leave out the standard error, because it is undefined.
    """
    if not rollouts:
        return {}
    totals = [rollout.total_reward for rollout in rollouts]
    rewards = [role.total_reward for role in by_role(rollouts)]
    error = standard_error(totals, [prompt_of(rollout) for rollout in rollouts])
    metrics = {
        "reward/mean": statistics.fmean(totals),
        "reward/std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
        **({} if error is None else {"reward/standard_error": error}),
        **length_statistics(rollouts),
    }
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.reward_parts):
        # A reward may leave out some texts.
        values = [rollout.reward_parts[name] for rollout in rollouts if name in rollout.reward_parts]
        metrics[f"reward/{name}/mean"] = statistics.fmean(values)
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.reward_values):
        values = [rollout.reward_values[name] for rollout in rollouts if name in rollout.reward_values]
        metrics[f"reward/{name}/mean"] = statistics.fmean(values)
    return metrics


def length_statistics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean number of tokens that the model wrote; {} without rollouts."""
    if not rollouts:
        return {}
    return {"response_length/mean": statistics.fmean(rollout.num_generated for rollout in rollouts)}


def prompt_of(rollout: Rollout) -> tuple[str, str]:
    """Return a key that identifies the prompt; a data set's prompts are identified by their text alone."""
    return "" if rollout.from_data else rollout.prompt.id, rollout.prompt.text


def play_statistics(collected: Collected) -> dict[str, float]:
    """Return means of the environment's measures and of the number of turns, and the share of cut episodes.

    Example: for two games, one won after 4 turns and one cut off after 8, `environment/won/mean` is 0.5,
    `turns/mean` 6 and `finish/cut` 0.5. A measure's mean is over the episodes that have it.
    """
    metrics = {
        "environment/failed": float(collected.num_environment_failed),
        "environment/restarts": float(collected.num_environment_restarts),
    }
    rollouts = collected.rollouts
    if not rollouts:
        return metrics
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.info):
        values = [rollout.info[name] for rollout in rollouts if name in rollout.info]
        metrics[f"environment/{name}/mean"] = statistics.fmean(values)
    metrics["turns/mean"] = statistics.fmean(len(rollout.turns) for rollout in rollouts)
    cut = [rollout.finish_reason in UNFINISHED for rollout in rollouts]
    metrics["finish/cut"] = statistics.fmean(cut)
    return metrics


def numbers_at_k(
    at_k: AtK,
    rollouts: Sequence[Rollout],
    rows: Sequence[dict[str, Any]],
    answers: Sequence[str | None] | None,
) -> dict[str, float]:
    """Return the numbers over several texts per prompt, and add each prompt's numbers to its rows.

    Raises:
        InputError: no row has the column that decides which texts pass.
    """
    groups, prompts = [rollout.group for rollout in rollouts], [prompt_of(rollout) for rollout in rollouts]
    return at_k(rows, groups, prompts, answers)
