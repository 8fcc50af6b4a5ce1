"""Statistics of rollouts: rewards, lengths, episodes, and numbers of several texts per prompt."""

import statistics
from collections.abc import Sequence
from typing import Any

from contracts.roles import by_role
from contracts.rollout import UNFINISHED, Rollout
from services.loop.collecting import Collected
from services.loop.statistics.at_k import AtK
from services.runs.standard_errors import standard_error


def reward_statistics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return means of rewards, of their parts and named values, and of lengths; an error over prompts.

    With a single prompt the standard error is left out, since it is undefined.
    """
    if not rollouts:
        return {}
    totals = [rollout.total_reward for rollout in rollouts]
    own = [each.total_reward for each in by_role(rollouts)]
    error = standard_error(totals, [prompt_of(rollout) for rollout in rollouts])
    found = {
        "reward/mean": statistics.fmean(totals),
        "reward/std": statistics.stdev(own) if len(own) > 1 else 0.0,
        **({} if error is None else {"reward/standard_error": error}),
        **length_statistics(rollouts),
    }
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.reward_parts):
        # A reward may say nothing about some texts.
        values = [rollout.reward_parts[name] for rollout in rollouts if name in rollout.reward_parts]
        found[f"reward/{name}/mean"] = statistics.fmean(values)
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.reward_values):
        values = [rollout.reward_values[name] for rollout in rollouts if name in rollout.reward_values]
        found[f"reward/{name}/mean"] = statistics.fmean(values)
    return found


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
    found = {
        "environment/failed": float(collected.num_environment_failed),
        "environment/restarts": float(collected.num_environment_restarts),
    }
    rollouts = collected.rollouts
    if not rollouts:
        return found
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.info):
        values = [rollout.info[name] for rollout in rollouts if name in rollout.info]
        found[f"environment/{name}/mean"] = statistics.fmean(values)
    found["turns/mean"] = statistics.fmean(len(rollout.turns) for rollout in rollouts)
    cut = [rollout.finish_reason in UNFINISHED for rollout in rollouts]
    found["finish/cut"] = statistics.fmean(cut)
    return found


def numbers_at_k(
    at_k: AtK,
    rollouts: Sequence[Rollout],
    rows: Sequence[dict[str, Any]],
    answers: Sequence[str | None] | None,
) -> dict[str, float]:
    """Return the numbers of several texts per prompt, and add each prompt's own ones to its rows.

    Raises:
        InputError: no row has the column by which texts pass.
    """
    groups, prompts = [each.group for each in rollouts], [prompt_of(each) for each in rollouts]
    return at_k(rows, groups, prompts, answers)
