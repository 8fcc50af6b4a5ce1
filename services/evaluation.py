"""Generations for held-out prompts, their rewards, and the metrics over all of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.rollout import Lease, Rollout
from services.collecting import Collector, as_sample
from services.policy_perplexity import PERPLEXITY, PolicyPerplexity
from services.post_processing import PostProcess, PostProcessed
from services.run_folder import SHORT_SPLITS


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`metrics` for the split's file, `rows` for its predictions, one a generated text."""

    metrics: dict[str, float]
    rows: list[dict[str, Any]]


def evaluate(
    split: str,
    leases: Sequence[Lease],
    collect: Collector,
    post_process: PostProcess | None = None,
    perplexity: PolicyPerplexity | None = None,
) -> Evaluation:
    """Generate for every lease, score, and compute every metric on the whole split.

    Rewards, metrics and predictions are those of the texts as `post_process` leaves them. `perplexity` is
    that of the prompts' references, under the policy itself.
    """
    workers, rewards = collect.workers, collect.rewards
    if post_process is not None:
        collect = replace(collect, workers=PostProcessed(workers, post_process))
    found = collect(leases)
    rollouts = sorted(found.rollouts, key=lambda rollout: rollout.lease_id)
    values = rewards.compute_metrics([as_sample(rollout) for rollout in rollouts]) if rollouts else {}
    metrics = reward_statistics(rollouts) | {key: value.corpus for key, value in values.items()}
    if perplexity is not None:
        prompts = {lease.prompt.id: lease.prompt for lease in leases}.values()
        references = [text for prompt in prompts for text in prompt.references]
        metrics[PERPLEXITY] = perplexity(references, workers)
    rows = []
    for index, rollout in enumerate(rollouts):
        row = prediction_row(split, rollout)
        for key, value in values.items():
            row[key] = "n/a" if value.rows is None else value.rows[index]
        rows.append(row)
    return Evaluation(metrics, rows)


def reward_statistics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward, its standard error, each part's mean, and the responses' length."""
    if not rollouts:
        return {}
    totals = [rollout.total_reward for rollout in rollouts]
    spread = statistics.stdev(totals) if len(totals) > 1 else 0.0
    found = {
        "reward/mean": statistics.fmean(totals),
        "reward/std": spread,
        "reward/standard_error": spread / len(totals) ** 0.5,
        "response_length/mean": statistics.fmean(rollout.num_generated for rollout in rollouts),
    }
    for name in rollouts[0].reward_parts:
        found[f"reward/{name}/mean"] = statistics.fmean(r.reward_parts[name] for r in rollouts)
    return found


def prediction_row(split: str, rollout: Rollout) -> dict[str, Any]:
    """RL4LMs' keys, so that its users' scripts go on working."""
    references = "".join(f"<START-{i}>{text}<END-{i}>" for i, text in enumerate(rollout.prompt.references, 1))
    return {
        "split_name": SHORT_SPLITS.get(split, split),
        "sample_id": rollout.prompt.id,
        "prompt_text": rollout.prompt.text,
        "generated_text": rollout.text,
        "ref_text": references,
        "reward": rollout.total_reward,
        **{f"reward/{name}": value for name, value in rollout.reward_parts.items()},
    }
