"""Make an iteration's line in rollout_info.jsonl and its line in training_info.jsonl."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.clients import FleetClient, RewardClient
from contracts.rollout import FinishReason
from reward_servers.settings import Part
from reward_servers.shaping import shares
from services.config.measures import Measures
from services.training.loop.collecting import Collected
from services.training.loop.statistics.batch_signs import batch_signs
from services.training.loop.statistics.by_part import training_by_part
from services.training.loop.statistics.rollout_statistics import (
    length_statistics,
    play_statistics,
    reward_statistics,
)

# Prefixes of the learner's metrics of rollouts
FROM_THE_LEARNER = ("kl/", "staleness/", "mismatch", "throughput/")


@dataclass(frozen=True, slots=True)
class Iteration:
    """Results of one finished iteration.

    Example: `Iteration(batch, {"loss/policy": -0.2, …}, {"time/weights_s": 0.1}, {"workers/up": 2.0}, 4.0)`
    """

    batch: Collected
    trained: Mapping[str, float]  # the learner's metrics of the update
    pushed: Mapping[str, float]  # time and size of the push of weights
    described: Mapping[str, float]  # metrics of how the batch was made
    seconds: float


@dataclass(frozen=True, slots=True)
class IterationInfo:
    """Maker of an iteration's metrics, in the order of its two lines."""

    rewards: tuple[Part, ...]  # their weighted sum is a rollout's reward
    plays: bool  # whether rollouts are episodes of an environment
    client: RewardClient
    measures: Measures
    longest_prompt: int | None = None  # tokens to which longer prompts are cut
    of_parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)  # rewards of a mixture's parts
    by_token: bool = False  # whether the algorithm credits tokens with rewards of tokens
    discount: float = 1.0  # factor for a reward at each earlier turn

    def is_judged(self, batch: Collected) -> bool:
        """Tell whether rewards graded the rollouts. The ranks and labels of a data set are not rewards."""
        return bool(self.rewards or self.plays) and batch.rollouts[0].turns[-1].reward is not None

    def __call__(self, done: Iteration) -> tuple[dict[str, float], dict[str, float]]:
        """Return the lines of rollout_info.jsonl and of training_info.jsonl.

        Raises:
            InputError: a user's measure fails.
        """
        rollouts, is_judged = done.batch.rollouts, self.is_judged(done.batch)
        info = rollout_info(done.batch, done.trained, done.pushed, done.seconds, is_judged=is_judged)
        info |= done.described
        info |= batch_signs(
            rollouts,
            self.longest_prompt,
            is_judged=is_judged,
            by_token=self.by_token,
            discount=self.discount,
        )
        if self.plays:
            info |= play_statistics(done.batch)
        if self.of_parts:
            info |= training_by_part(rollouts, self.of_parts)
        else:
            info |= shares(self.rewards, [row for rollout in rollouts for row in rollout.judged_parts])
        info |= {f"throughput/cached/{label}": share for label, share in self.client.cached().items()}
        info |= self.client.take_counts()
        training = training_info(done.trained)
        return info | self.measures(rollouts, taken={**info, **training}), training


def rollout_info(
    collected: Collected,
    trained: Mapping[str, float],
    pushed: Mapping[str, float],
    iteration_s: float,
    *,
    is_judged: bool,
) -> dict[str, float]:
    """Return a line of rollout_info.jsonl: rewards, KL, lengths, times and throughput."""
    generated = sum(rollout.num_generated for rollout in collected.rollouts)
    stopped = sum(rollout.finish_reason is not FinishReason.LENGTH for rollout in collected.rollouts)
    info = reward_statistics(collected.rollouts) if is_judged else length_statistics(collected.rollouts)
    info |= {key: value for key, value in trained.items() if key.startswith(FROM_THE_LEARNER)}
    info |= {
        "rollouts/scored": float(len(collected.rollouts)),
        "rollouts/trained": trained["rollouts/trained"],
        "reward/failures": float(collected.num_failed),
        "finish/stop": stopped / len(collected.rollouts),
        "time/rollout_s": collected.rollout_s,
        "time/reward_s": collected.reward_s,
        "time/score_s": trained["time/score_s"],
        "time/update_s": trained["time/update_s"],
        **pushed,
        "time/iteration_s": iteration_s,
        "time/learner_idle_share": 1.0 - (trained["time/score_s"] + trained["time/update_s"]) / iteration_s,
        "throughput/generated_tokens_per_s": generated / max(collected.rollout_s, 1e-9),
        "throughput/trained_tokens_per_s": trained["tokens/trained"] / max(trained["time/update_s"], 1e-9),
        "throughput/sequences_per_s": (len(collected.rollouts) + len(collected.from_data)) / iteration_s,
    }
    return info | data_info(collected)


class WorkerMeter:
    """Meter of the workers' idle time and losses in an iteration."""

    def __init__(self, workers: FleetClient) -> None:
        self._workers = workers
        self.begin()

    def begin(self) -> None:
        """Start the measurement of an iteration."""
        self._idle_s, self._num_quarantined = self._workers.idle_s, self._workers.num_quarantined

    def info(self, iteration_s: float) -> dict[str, float]:
        """Return the metrics since `begin`, for an iteration of `iteration_s` seconds."""
        workers, idle_s = self._workers, self._workers.idle_s - self._idle_s  # sum over all workers
        return {
            "time/workers_idle_share": idle_s / iteration_s / workers.num_workers,
            "workers/up": float(workers.num_up),
            "workers/quarantined": float(workers.num_quarantined - self._num_quarantined),
        }


def data_info(collected: Collected) -> dict[str, float]:
    """Return the share of a data set's rollouts in the batch, and their reward statistics."""
    if not collected.from_data:
        return {}
    share = len(collected.from_data) / (len(collected.rollouts) + len(collected.from_data))
    return {"data/share": share} | {
        f"data/{key}": value for key, value in reward_statistics(collected.from_data).items()
    }


def training_info(trained: Mapping[str, float]) -> dict[str, float]:
    """Return a line of training_info.jsonl: the update's metrics that rollout_info.jsonl lacks."""
    elsewhere = (*FROM_THE_LEARNER, "time/", "tokens/", "rollouts/")
    return {key: value for key, value in trained.items() if not key.startswith(elsewhere)}
