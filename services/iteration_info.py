"""The lines of one iteration in rollout_info.jsonl and training_info.jsonl."""

from collections.abc import Mapping

from contracts.clients import FleetClient
from services.collecting import Collected
from services.evaluation import reward_statistics


def rollout_info(
    found: Collected, trained: Mapping[str, float], pushed: Mapping[str, float], iteration_s: float
) -> dict[str, float]:
    """One line of rollout_info.jsonl: rewards, KL, lengths, and where the time went."""
    generated = sum(rollout.num_generated for rollout in found.rollouts)
    stopped = sum(rollout.finish_reason == "stop" for rollout in found.rollouts)
    scored = found.rollouts[0].turns[-1].reward is not None
    info = reward_statistics(found.rollouts) if scored else {}
    info |= {
        key: value for key, value in trained.items() if key.startswith(("kl/", "staleness/", "mismatch"))
    }
    info |= {
        "rollouts/scored": float(len(found.rollouts)),
        "rollouts/trained": trained["rollouts/trained"],
        "reward/failures": float(found.num_failed),
        "finish/stop": stopped / len(found.rollouts),
        "time/rollout_s": found.rollout_s,
        "time/reward_s": found.reward_s,
        "time/score_s": trained["time/score_s"],
        "time/update_s": trained["time/update_s"],
        **pushed,
        "time/iteration_s": iteration_s,
        "time/learner_idle_share": 1.0 - (trained["time/score_s"] + trained["time/update_s"]) / iteration_s,
        "throughput/generated_tokens_per_s": generated / max(found.rollout_s, 1e-9) if scored else 0.0,
        "throughput/trained_tokens_per_s": trained["tokens/trained"] / max(trained["time/update_s"], 1e-9),
        "throughput/sequences_per_s": (len(found.rollouts) + len(found.from_data)) / iteration_s,
    }
    return info | data_info(found)


def workers_info(
    workers: FleetClient, idle_s: float, num_quarantined: int, iteration_s: float
) -> dict[str, float]:
    """What the workers did not do in an iteration.

    Args:
        idle_s: that all of them together had nothing to write.
        num_quarantined: as the workers counted before it.
    """
    return {
        "time/workers_idle_share": idle_s / iteration_s / workers.num_workers,
        "workers/up": float(workers.num_up),
        "workers/quarantined": float(workers.num_quarantined - num_quarantined),
    }


def data_info(found: Collected) -> dict[str, float]:
    """Of rollouts that a data set gave: which share of the batch they are, and what they earned."""
    if not found.from_data:
        return {}
    share = len(found.from_data) / (len(found.rollouts) + len(found.from_data))
    return {"data/share": share} | {
        f"data/{key}": value for key, value in reward_statistics(found.from_data).items()
    }


def training_info(trained: Mapping[str, float]) -> dict[str, float]:
    """One line of training_info.jsonl: what the update says of itself."""
    elsewhere = ("kl/", "staleness/", "mismatch", "time/", "tokens/", "rollouts/")
    return {key: value for key, value in trained.items() if not key.startswith(elsewhere)}
