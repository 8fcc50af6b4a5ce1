"""Metrics of a run on Ray's endpoint, for Prometheus.

Ray prefixes each name with `ray_`. Labels are `run` and Ray's own. Alerts and the dashboard in
`deploy/monitoring` use no other metrics.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from contracts.secrets.redaction import redact

TELL_S = 4.0

# Newest value of a logged number, by its key in the run's files.
GAUGES = {
    "reward/mean": ("whetstone_reward_mean", "mean reward of the newest iteration's rollouts"),
    "val/reward/mean": ("whetstone_validation_reward_mean", "mean reward on validation prompts"),
    "kl/mean": ("whetstone_kl_mean", "KL divergence from the reference, nats per token"),
    "kl/coefficient": ("whetstone_kl_coefficient", "weight of the KL divergence in the reward"),
    "entropy": ("whetstone_entropy", "entropy of the policy, nats per token"),
    "staleness/mean": ("whetstone_staleness_mean", "weight versions between generating and training"),
    "response_length/mean": ("whetstone_response_length_mean", "tokens per response"),
    "time/iteration_s": ("whetstone_iteration_seconds", "seconds of the newest iteration"),
    "time/rollout_s": ("whetstone_rollout_seconds", "seconds until all rollouts of an iteration were there"),
    "time/update_s": ("whetstone_update_seconds", "seconds of the learner's update"),
    "throughput/generated_tokens_per_s": (
        "whetstone_generated_tokens_per_second",
        "tokens that the rollout workers wrote",
    ),
    "throughput/trained_tokens_per_s": (
        "whetstone_trained_tokens_per_second",
        "tokens that the learner trained on",
    ),
    "throughput/sequences_per_s": ("whetstone_sequences_per_second", "rollouts, over whole iterations"),
}
# Sums over the iterations. They are gauges because Ray's counters can't begin at 0.
SUMS = {
    "rollouts/trained": ("whetstone_rollouts_trained_total", "rollouts that were trained on"),
    "reward/failures": ("whetstone_reward_failures_total", "rollouts whose scoring failed"),
}
ITERATION = ("whetstone_iteration", "iterations that are done")
PLANNED = ("whetstone_iterations_planned", "iterations after which the run ends")
PROGRESS = ("whetstone_last_progress_timestamp_seconds", "when a rollout or a minibatch was last done")


def names() -> set[str]:
    """Return the names of all metrics in Prometheus."""
    return {f"ray_{name}" for name, _ in (*GAUGES.values(), *SUMS.values(), ITERATION, PLANNED, PROGRESS)}


class RunMetrics:
    """Metrics of one run, published within its `with` block. Needs a running Ray.

    Ray drops a gauge that was not set for some seconds, so a thread sets them all every TELL_S. The time of
    the last progress shows whether the run stands still.
    """

    def __init__(self, run_name: str, iterations: int) -> None:
        # Ray's metrics allow only ASCII.
        self._tags = {"run": redact(run_name).encode("ascii", "backslashreplace").decode()}
        self._gauges = {key: self._made(*description) for key, description in GAUGES.items()}
        self._sums = {key: self._made(*description) for key, description in SUMS.items()}
        self._iteration, self._progress = self._made(*ITERATION), self._made(*PROGRESS)
        self._values = dict.fromkeys(self._sums.values(), 0.0) | {self._made(*PLANNED): float(iterations)}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="prometheus", daemon=True)
        self.progress()

    def __enter__(self) -> "RunMetrics":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def log(self, values: Mapping[str, Any], iteration: int) -> None:
        """Publish the numbers logged for an iteration or an evaluation."""
        self._values[self._iteration] = float(iteration)
        for key, gauge in self._gauges.items():
            if isinstance(values.get(key), int | float):
                self._values[gauge] = float(values[key])
        for key, gauge in self._sums.items():
            self._values[gauge] += float(values.get(key, 0.0))
        self.progress()

    def progress(self) -> None:
        """Publish the time when a rollout arrived or a minibatch ended."""
        self._values[self._progress] = time.time()

    def _tell(self) -> None:
        while not self._is_over.is_set():
            for gauge, value in list(self._values.items()):
                gauge.set(value)
            self._is_over.wait(TELL_S)

    def _made(self, name: str, description: str) -> Gauge:
        gauge = Gauge(name, description=description, tag_keys=("run",))
        gauge.set_default_tags(self._tags)
        return gauge
