"""Evaluate a model on held-out prompts: texts, their rewards, and metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from contracts.clients import Graders
from contracts.processes import timeline
from contracts.rollout import UNFINISHED, Lease, Rollout
from services.config.post_processing import PostProcess, PostProcessed
from services.runs.folder import SHORT_SPLITS
from services.training.loop.collecting import Collector
from services.training.loop.evaluations.evaluated_metrics import EvaluatedMetrics
from services.training.loop.evaluations.policy_perplexity import PERPLEXITY, PolicyPerplexity
from services.training.loop.statistics.at_k import AtK
from services.training.loop.statistics.by_part import measure_parts
from services.training.loop.statistics.rollout_statistics import (
    length_statistics,
    numbers_at_k,
    play_statistics,
    reward_statistics,
)

AsRead = Callable[[Sequence[int]], str]  # turns a prompt's tokens into text


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation: `metrics` of the split, and `rows` of predictions, one row for each text."""

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
    parts: Sequence[str] = (),
    evaluated: EvaluatedMetrics | None = None,
) -> Evaluation:
    """Generate for every lease, score the texts, and compute every metric on the whole split.

    Args:
        post_process: changes texts before rewards, metrics and predictions read them.
        perplexity: measures the policy's perplexity on the prompts' reference texts.
        as_read: adds the prompt as the model read it to each row: cut, with special tokens visible.
        at_k: adds numbers over several texts per prompt, before all other metrics.
        parts: parts of a mixture, for which metrics are computed, too.
        evaluated: metrics that take the split's name or the model.
    """
    workers, rewards = collect.workers, collect.rewards
    graders: Graders = rewards if evaluated is None else evaluated.beside(rewards, split, workers)
    collect = replace(collect, judging=replace(collect.judging, split=split))
    if post_process is not None:
        collect = replace(collect, workers=PostProcessed(workers, post_process))
    collected = collect(leases)
    rollouts = sorted(collected.rollouts, key=lambda rollout: rollout.lease_id)
    with timeline.span("waits for metrics"):
        samples = [collect.judging.whole(rollout) for rollout in rollouts]
        values = graders.compute_metrics(samples) if rollouts else {}
    plays = collect.judging.environment is not None
    is_scored = bool(rollouts) and rollouts[0].turns[-1].reward is not None
    metrics = reward_statistics(rollouts) if is_scored else length_statistics(rollouts)
    metrics |= play_statistics(collected) if plays else {}
    metrics |= {key: value.corpus for key, value in values.items()}
    if perplexity is not None:
        prompts = {lease.prompt.id: lease.prompt for lease in leases}
        metrics[PERPLEXITY] = perplexity(list(prompts.values()), workers)
    rows: list[dict[str, Any]] = []
    answers: list[str | None] | None = None
    for index, rollout in enumerate(rollouts):
        row = prediction_row(split, rollout, as_read)
        if not is_scored:
            row.pop("reward")
        row |= transcript(rollout) if plays else {}
        for key, value in values.items():
            row[key] = "n/a" if value.rows is None else value.rows[index]
        rows.append(row)
    if parts:
        metrics |= measure_parts(parts, rollouts, samples, rows, graders, at_k)
    elif at_k is not None and rollouts:
        answers = rewards.answers([sample.response for sample in samples])
    if at_k is not None:
        metrics = numbers_at_k(at_k, rollouts, rows, answers) | metrics
    return Evaluation(metrics, rows)


def prediction_row(split: str, rollout: Rollout, as_read: AsRead | None = None) -> dict[str, Any]:
    """Return a row with RL4LMs' keys, for existing scripts, and the prompt as the model read it."""
    references = "".join(f"<START-{i}>{text}<END-{i}>" for i, text in enumerate(rollout.prompt.references, 1))
    return {
        "split_name": SHORT_SPLITS.get(split, split),
        "sample_id": rollout.prompt.id,
        "prompt_text": rollout.prompt.text,
        **({"prompt_as_read": as_read(rollout.turns[0].observation)} if as_read and rollout.turns else {}),
        "generated_text": rollout.text,
        "ref_text": references,
        "reward": rollout.total_reward,
        **judged(rollout),
    }


def judged(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout's columns from rewards: the score of each reward, named values, and a comment."""
    numbers = {**rollout.reward_parts, **rollout.reward_values}
    comment = {"comment": rollout.comment} if rollout.comment else {}
    return {f"reward/{name}": value for name, value in numbers.items()} | comment


def transcript(rollout: Rollout) -> dict[str, Any]:
    """Return the columns of a played episode: its turns, its end, and its measures.

    Example: `{"turns": [{"observation": "You are in a kitchen.", "answer": "go east", "reward": 0.0,
    "read": 12, "written": 3, "fresh": true}, …], "end": "won", "environment/won": 1.0, …}`. The model wrote
    `written` tokens; the loss masks the `read` ones. The context of a fresh turn begins anew. If an agent's
    calls make several token sequences, `sequence` numbers them from 1. `role` names a role.
    """
    turns: list[dict[str, Any]] = [
        {
            "observation": turn.observation_text,
            "answer": turn.text,
            "reward": turn.reward,
            "read": turn.num_observed,
            "written": turn.num_tokens,
            "fresh": turn.fresh,
            **({"role": turn.role} if turn.role else {}),
        }
        for turn in rollout.turns
    ]
    if turns and not turns[0]["observation"]:
        turns[0]["observation"] = rollout.prompt.text
    if rollout.info.get("sequences", 1) > 1:
        numbers = accumulate(int(turn.fresh) for turn in rollout.turns)
        turns = [{"sequence": number, **turn} for number, turn in zip(numbers, turns, strict=True)]
    measured = {f"environment/{name}": value for name, value in rollout.info.items()}
    return {"turns": turns, "end": how_it_ended(rollout), **measured}


def how_it_ended(rollout: Rollout) -> str:
    """Return "won" or "lost" if the environment reports it, "cut" for an unfinished episode, else "ended"."""
    for end in ("won", "lost"):
        if rollout.info.get(end):
            return end
    return "cut" if rollout.finish_reason in UNFINISHED else "ended"
