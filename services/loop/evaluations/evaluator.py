"""Evaluations of a run: on the same held-out prompts each time, and once by the baseline players."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.rollout import Lease
from services.config.post_processing import PostProcess
from services.loop.collecting import Collector
from services.loop.evaluations.baselines import baselines, summary
from services.loop.evaluations.evaluated_metrics import EvaluatedMetrics
from services.loop.evaluations.evaluation import AsRead, Evaluation, evaluate
from services.loop.evaluations.policy_perplexity import PolicyPerplexity
from services.loop.evaluations.responses import HeldOutResponses
from services.loop.statistics.at_k import AtK


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluator of a split, with the weights that the workers have now."""

    leases: Mapping[str, Sequence[Lease]]  # of each split
    collector: Collector
    post_process: PostProcess | None = None
    perplexity: PolicyPerplexity | None = None
    as_read: AsRead | None = None
    has_baselines: bool = False
    at_k: AtK | None = None
    parts: Sequence[str] = ()  # of a mixture
    evaluated: EvaluatedMetrics | None = None
    responses: HeldOutResponses | None = None  # that the learner is measured by, beside its own texts

    def __call__(self, split: str, *, is_untrained: bool = False) -> Evaluation:
        """Evaluate a split; the untrained model's evaluation has a progress line of its own."""
        leases = self.leases[split]
        num_prompts = len({lease.group for lease in leases})
        texts = "" if num_prompts == len(leases) else f", {len(leases) // num_prompts} texts each"
        shown = self.collector.console.doing(
            f"evaluating the untrained model on {num_prompts} {split} prompts{texts}"
        )
        with shown if is_untrained else contextlib.nullcontext():
            own = self.post_process, self.perplexity, self.as_read, self.at_k, self.parts, self.evaluated
            found = evaluate(split, leases, self.collector, *own)
            measured = self.responses(split) if self.responses else {}
        return replace(found, metrics=measured | found.metrics)

    def baselines(self, split: str) -> dict[str, float]:
        """Return the metrics of the baseline players; {} if the environment has no such players."""
        if not self.has_baselines:
            return {}
        found = baselines(split, self.leases[split], self.collector)
        self.collector.console.note(f"{split} played by others: {summary(found)}")
        return found
