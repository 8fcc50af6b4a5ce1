"""Compute the metrics that take the split's name or the model. Replicas serve all other metrics."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from contracts.clients import RewardClient, RolloutClient
from contracts.scores import MetricValue, Sample
from reward_servers.by_part import ByPart
from reward_servers.combine import union
from reward_servers.server import MetricServer
from reward_servers.settings import Part
from services.training.loop.evaluations.evaluated_model import EvaluatedModel

ModelOf = Callable[[RolloutClient], EvaluatedModel]


class EvaluatedMetrics:
    """A run's metrics that take `split` or `model`; each metric object is made at its first use."""

    def __init__(self, metrics: Sequence[Part], by_part: ByPart, model_of: ModelOf) -> None:
        self._parts, self._by_part, self.model_of = metrics, by_part, model_of

    @cached_property
    def _servers(self) -> Mapping[str, MetricServer]:
        return {part.label: MetricServer(part) for part in self._parts}

    def add(
        self,
        values: Mapping[str, MetricValue],
        samples: Sequence[Sample],
        part: str | None,
        evaluation: Mapping[str, Any],
    ) -> dict[str, MetricValue]:
        """Add the metrics of one part of a mixture, or of all parts, to the metrics of replicas.

        Args:
            evaluation: the values of `split` and `model`.
        """
        metrics = [metric for metric in self._parts if self._by_part.measures(metric.label, part)]
        computed = [self._servers[metric.label].compute(samples, evaluation) for metric in metrics]
        return union(metrics, computed, values)

    def beside(self, rewards: RewardClient, split: str, workers: RolloutClient) -> "WithEvaluated":
        """Return the client, extended by these metrics of an evaluation."""
        return WithEvaluated(rewards, self, {"split": split, "model": self.model_of(workers)})


class WithEvaluated:
    """Client of rewards and metrics, extended by the metrics of an evaluation."""

    def __init__(
        self, rewards: RewardClient, metrics: EvaluatedMetrics, evaluation: Mapping[str, Any]
    ) -> None:
        self._rewards, self._metrics, self._evaluation = rewards, metrics, evaluation

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        values = self._rewards.compute_metrics(samples, part)
        return self._metrics.add(values, samples, part, self._evaluation)

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        return self._rewards.answers(texts, part)
