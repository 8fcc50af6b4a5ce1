"""Evaluate held-out prompts: generations, their rewards, and metrics over all of them."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.rollout import FinishReason, Lease, Rollout
from services.config.post_processing import PostProcess, PostProcessed
from services.config.reward_view import as_sample
from services.loop.at_k import AtK
from services.loop.collecting import Collected, Collector
from services.loop.policy_perplexity import PERPLEXITY, PolicyPerplexity
from services.runs.folder import SHORT_SPLITS
from services.runs.standard_errors import standard_error

AsRead = Callable[[Sequence[int]], str]  # turns a prompt's tokens into text


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation: `metrics` of the split, and `rows` of predictions, one for each text."""

    metrics: dict[str, float]
    rows: list[dict[str, Any]]


def evaluate(
    split: str,
    leases: Sequence[Lease],
    collect: Collector,
    post_process: PostProcess | None = None,
    perplexity: PolicyPerplexity | None = None,
    as_read: AsRead | None = None,
    at_k: AtK | None = None,
) -> Evaluation:
    """Generate for every lease, score, and compute every metric on the whole split.

    Rewards, metrics and predictions are those of the texts after `post_process`. `perplexity` measures the
    policy's perplexity on the prompts' reference texts. `as_read` adds to each row the prompt as the model
    read it: cut if it was too long, with special tokens visible. `at_k` adds the numbers of several texts
    per prompt, and comes first.
    """
    workers, rewards = collect.workers, collect.rewards
    collect = replace(collect, judging=replace(collect.judging, split=split))
    if post_process is not None:
        collect = replace(collect, workers=PostProcessed(workers, post_process))
    found = collect(leases)
    rollouts = sorted(found.rollouts, key=lambda rollout: rollout.lease_id)
    values = rewards.compute_metrics([as_sample(rollout, split) for rollout in rollouts]) if rollouts else {}
    plays = collect.judging.environment is not None
    metrics = reward_statistics(rollouts)
    metrics |= play_statistics(found) if plays else {}
    metrics |= {key: value.corpus for key, value in values.items()}
    if perplexity is not None:
        prompts = {lease.prompt.id: lease.prompt for lease in leases}
        metrics[PERPLEXITY] = perplexity(list(prompts.values()), workers)
    rows = []
    for index, rollout in enumerate(rollouts):
        row = prediction_row(split, rollout, as_read)
        row |= transcript(rollout) if plays else {}
        for key, value in values.items():
            row[key] = "n/a" if value.rows is None else value.rows[index]
        rows.append(row)
    if at_k is not None:
        answers = rewards.answers([rollout.text for rollout in rollouts]) if rollouts else None
        groups, prompts_ = [rollout.group for rollout in rollouts], [_prompt_of(own) for own in rollouts]
        metrics = at_k(rows, groups, prompts_, answers) | metrics
    return Evaluation(metrics, rows)


def reward_statistics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return mean reward, its standard error over prompts, each part's mean, and the responses' length.

    With a single prompt the standard error is left out, since it is undefined.
    """
    if not rollouts:
        return {}
    totals = [rollout.total_reward for rollout in rollouts]
    error = standard_error(totals, [_prompt_of(rollout) for rollout in rollouts])
    found = {
        "reward/mean": statistics.fmean(totals),
        "reward/std": statistics.stdev(totals) if len(totals) > 1 else 0.0,
        **({} if error is None else {"reward/standard_error": error}),
        "response_length/mean": statistics.fmean(rollout.num_generated for rollout in rollouts),
    }
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.reward_parts):
        # A reward may say nothing about some texts.
        values = [rollout.reward_parts[name] for rollout in rollouts if name in rollout.reward_parts]
        found[f"reward/{name}/mean"] = statistics.fmean(values)
    return found


def _prompt_of(rollout: Rollout) -> tuple[str, str]:
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
    cut = [rollout.finish_reason is FinishReason.LENGTH for rollout in rollouts]
    found["finish/cut"] = statistics.fmean(cut)
    return found


def prediction_row(split: str, rollout: Rollout, as_read: AsRead | None = None) -> dict[str, Any]:
    """Return a row with RL4LMs' keys, which existing scripts read, and the prompt as the model read it."""
    references = "".join(f"<START-{i}>{text}<END-{i}>" for i, text in enumerate(rollout.prompt.references, 1))
    return {
        "split_name": SHORT_SPLITS.get(split, split),
        "sample_id": rollout.prompt.id,
        "prompt_text": rollout.prompt.text,
        **({"prompt_as_read": as_read(rollout.turns[0].observation)} if as_read and rollout.turns else {}),
        "generated_text": rollout.text,
        "ref_text": references,
        "reward": rollout.total_reward,
        **{f"reward/{name}": value for name, value in rollout.reward_parts.items()},
    }


def transcript(rollout: Rollout) -> dict[str, Any]:
    """Return what a played episode adds to its row: every turn, how it ended, and its measures.

    Example: `{"turns": [{"observation": "You are in a kitchen.", "answer": "go east", "reward": 0.0}, …],
    "end": "won", "environment/won": 1.0, "environment/steps": 5.0}`
    """
    turns = [
        {"observation": turn.observation_text, "answer": turn.text, "reward": turn.reward}
        for turn in rollout.turns
    ]
    if turns and not turns[0]["observation"]:
        turns[0]["observation"] = rollout.prompt.text
    measured = {f"environment/{name}": value for name, value in rollout.info.items()}
    return {"turns": turns, "end": how_it_ended(rollout), **measured}


def how_it_ended(rollout: Rollout) -> str:
    """Return "won" or "lost" if the environment says so, "cut" for an unfinished episode, else "ended"."""
    for end in ("won", "lost"):
        if rollout.info.get(end):
            return end
    return "cut" if rollout.finish_reason is FinishReason.LENGTH else "ended"
