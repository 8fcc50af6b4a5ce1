"""Evaluations of a run, always on the same held-out prompts, and once by the baseline players."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.rollout import Lease
from services.config.post_processing import PostProcess
from services.training.loop.collecting import Collector
from services.training.loop.evaluations.baselines import baselines, summary
from services.training.loop.evaluations.evaluated_metrics import EvaluatedMetrics
from services.training.loop.evaluations.evaluation import AsRead, Evaluation, evaluate
from services.training.loop.evaluations.policy_perplexity import PolicyPerplexity
from services.training.loop.evaluations.responses import HeldOutResponses
from services.training.loop.statistics.at_k import AtK


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluator of a split with the workers' current weights."""

    leases: Mapping[str, Sequence[Lease]]  # leases of each split
    collector: Collector
    post_process: PostProcess | None = None
    perplexity: PolicyPerplexity | None = None
    as_read: AsRead | None = None
    has_baselines: bool = False
    at_k: AtK | None = None
    parts: Sequence[str] = ()  # parts of a mixture
    evaluated: EvaluatedMetrics | None = None
    responses: HeldOutResponses | None = None  # held-out responses that the learner scores

    def __call__(self, split: str, *, is_untrained: bool = False) -> Evaluation:
        """Evaluate a split; show a progress line for the untrained model."""
        leases = self.leases[split]
        num_prompts = len({lease.group for lease in leases})
        texts = "" if num_prompts == len(leases) else f", {len(leases) // num_prompts} texts each"
        shown = self.collector.console.doing(
            f"evaluating the untrained model on {num_prompts} {split} prompts{texts}"
        )
        with shown if is_untrained else contextlib.nullcontext():
            options = self.post_process, self.perplexity, self.as_read, self.at_k, self.parts, self.evaluated
            evaluation = evaluate(split, leases, self.collector, *options)
            measured = self.responses(split) if self.responses else {}
        return replace(evaluation, metrics=measured | evaluation.metrics)

    def baselines(self, split: str) -> dict[str, float]:
        """Return the metrics of the baseline players; {} if the environment has no such players."""
        if not self.has_baselines:
            return {}
        metrics = baselines(split, self.leases[split], self.collector)
        self.collector.console.note(f"{split} played by baselines: {summary(metrics)}")
        return metrics
