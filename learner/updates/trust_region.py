"""Update by one step of the natural gradient within a trust region, then by the critic's epochs (TRPO).

    g = ∇ mean(ρA)        x ≈ (F + λ)⁻¹g by conjugate gradients        s = x √(2δ / xᵀ(F + λ)x)

    θ ← θ + c·s    for the first c of 1, k, k² … at which KL(π_new‖π_old) < δ and mean(ρA) has grown;
                   if there is none, θ stays

Schulman et al. 2015 (arXiv 1502.05477), appendix C, over all trained parameters and all tokens of the batch
at once. F, the curvature of the KL, is never written out: see `fisher.py`.

Each rank takes its share of the samples. Ranks sum gradients, products and measures. But each rank holds
whole models and whole vectors of the conjugate gradients, because FSDP2's hooks don't follow forward-mode
derivatives. So more ranks make a step faster, but none needs less memory.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from contracts.errors import LearnerError
from learner.algorithms.base import Credit, LossInputs, LossOutput
from learner.algorithms.trpo import TRPO
from learner.batches.batching import MicroBatch
from learner.batches.fetching import fetched
from learner.functional.distribution_kl import distribution_kl
from learner.functional.trust_region import conjugate_gradients
from learner.models import dropout
from learner.updates.context import UpdateContext
from learner.updates.critic_epochs import fit_critic
from learner.updates.fisher import FisherProduct
from learner.updates.parameter_vector import ParameterVector

OBJECTIVE, KL = "trust_region objective", "trust_region kl"  # names among the sums, no algorithm's metrics


@dataclass(frozen=True, slots=True)
class Measured:
    """Measures of a policy on the whole batch.
    Example: `Measured(objective=0.031, kl=0.0064, metrics={"loss/policy": -0.031})`
    """

    objective: float
    kl: float  # KL to the old policy, in nats per token
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a line search: success, number of tries, and the last try's measures."""

    accepted: bool
    tries: int
    last: Measured


class TrustRegionUpdate:
    """Update of the policy without an optimiser, then of the critic in separate epochs."""

    def __init__(self, context: UpdateContext) -> None:
        self._context, self._algorithm = context, cast(TRPO, context.algorithm)
        self._policy = context.models.pair.policy
        self._parameters = ParameterVector(self._policy)
        # Count of sequences for the progress; conjugate gradients and line search may need fewer passes.
        passes = 1 + self._algorithm.cg_max_steps + self._algorithm.line_search_max_iter
        self._policys_share = passes * context.batch.num_sequences
        self._total = self._policys_share + self._algorithm.num_epochs * context.batch.num_sequences
        self._done = 0

    def run(self, credit: Credit) -> dict[str, float]:
        if dropout.is_on(self._policy, self._policy.lm.config.to_dict()):
            # With dropout, each pass would compute another policy. Without dropout, the policy stays in
            # training mode, because only there gradients are checkpointed.
            self._policy.eval()
        metrics = self._improve_policy(self._prepared(credit))
        self._done = self._policys_share
        return metrics | fit_critic(self._context, self._algorithm, credit, self._micro_batches)

    def _prepared(self, credit: Credit) -> Credit:
        """Prepare the advantages over the whole batch, usually by whitening."""
        batch, prepared_BT = self._context.batch, credit.advantages_BT.clone()
        places = batch.places(np.arange(batch.num_rollouts))
        prepared_BT[places] = self._algorithm.prepare_minibatch(credit.advantages_BT[places])
        return replace(credit, advantages_BT=prepared_BT)

    def _improve_policy(self, credit: Credit) -> dict[str, float]:
        algorithm = self._algorithm
        before, gradient_P = self._gradient(credit)
        norm = float(gradient_P.norm())
        if not math.isfinite(norm):
            raise LearnerError(
                f"the policy's gradient is not finite (norm {norm}), so the weights were not changed. Look "
                "at the rewards and at loss/value of the last iterations"
            )
        product = FisherProduct(self._context, self._parameters, algorithm.cg_damping, self._micro_batches)
        direction_P, residual_P = conjugate_gradients(product, gradient_P, algorithm.cg_max_steps)
        # xᵀ(F + λ)x, because (F + λ)x = g - r
        curvature = float(direction_P.dot(gradient_P - residual_P))
        if not math.isfinite(curvature):
            raise LearnerError(
                f"the KL's curvature along the step is not finite ({curvature}), so the weights were not "
                "changed. If bfloat16 overflows, set learner.autocast=none"
            )
        search = Search(accepted=False, tries=0, last=before)
        if curvature > 0:  # 0 if the gradient is 0, as with equal rewards
            step_P = math.sqrt(2 * algorithm.target_kl / curvature) * direction_P
            search = self._line_search(credit, before, step_P)
        now = search.last if search.accepted else before
        return {
            **now.metrics,
            "approx_kl": now.kl,
            "gradient_norm/policy": norm,
            "trust_region/failed": float(not search.accepted),
            "trust_region/kl": search.last.kl,
            "trust_region/improvement": search.last.objective - before.objective,
            "trust_region/line_search_steps": float(search.tries),
            "trust_region/cg_residual": float(residual_P.norm()) / norm if norm else 0.0,
        }

    def _gradient(self, credit: Credit) -> tuple[Measured, Tensor]:
        """Return the old policy's measures and the objective's gradient."""
        self._context.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for micro in self._micro_batches():
            output = self._algorithm.loss(self._loss_inputs(micro, credit))
            (micro.weight * output.loss).backward()
            _add(sums, micro, output)
        gradient_P = self._parameters.take_gradient()
        self._context.ranks.sum(gradient_P)
        return self._of_all(sums), -gradient_P

    def _line_search(self, credit: Credit, before: Measured, step_P: Tensor) -> Search:
        algorithm, old_P = self._algorithm, self._parameters.copy()
        accepted = False
        try:
            for tries in range(algorithm.line_search_max_iter):
                self._parameters.set(old_P + algorithm.line_search_shrinking_factor**tries * step_P)
                measured = self._measure(credit, old_P)
                accepted = measured.kl < algorithm.target_kl and measured.objective > before.objective
                if accepted:
                    break
        finally:
            if not accepted:
                self._parameters.set(old_P)
            elif self._context.ranks.size > 1:  # copy one rank's digits, so that ranks stay equal
                new_P = self._parameters.copy()
                self._context.ranks.copy_first(new_P)
                self._parameters.set(new_P)
        return Search(accepted, tries + 1, measured)

    @torch.no_grad()
    def _measure(self, credit: Credit, old_P: Tensor) -> Measured:
        """Measure the current policy."""
        sums: dict[str, Tensor] = {}
        for micro in self._micro_batches():
            output = self._algorithm.loss(self._loss_inputs(micro, credit))
            kl = self._kl(micro, old_P).sum().double() / self._context.batch.num_tokens
            _add(sums, micro, output, kl)
        return self._of_all(sums)

    def _of_all(self, sums: dict[str, Tensor]) -> Measured:
        """Return the measures summed over this rank and all others."""
        metrics = self._context.ranks.total(fetched(sums))
        return Measured(metrics.pop(OBJECTIVE), metrics.pop(KL, 0.0), metrics)

    def _loss_inputs(self, micro: MicroBatch, credit: Credit) -> LossInputs:
        batch = self._context.batch
        return self._context.loss_inputs(
            micro, credit, num_tokens=batch.num_tokens, num_rollouts=batch.num_rollouts, with_values=False
        )

    def _kl(self, micro: MicroBatch, old_P: Tensor) -> Tensor:
        """Return each token's KL(π‖π_old) over the vocabulary; π_old has the old parameters."""
        context, policy, old = self._context, self._policy, self._parameters.parts(old_P)
        with context.precision.autocast():
            return distribution_kl(
                policy.states(micro),
                policy.logits,
                self._parameters.call_with(old, policy.states, micro),
                lambda hidden_NH: self._parameters.call_with(old, policy.logits, hidden_NH),
                vocab_size=policy.vocab_size,
                logits_budget=policy.logits_budget,
                restriction=context.scored.restriction(micro),
            )

    def _micro_batches(self, rows_B: Tensor | None = None) -> Iterator[MicroBatch]:
        """Yield the micro-batches of these rollouts, or of all, and count each after it is done."""
        context = self._context
        rows_B = torch.arange(context.batch.num_rollouts) if rows_B is None else rows_B
        for micro in context.micro_batches(rows_B):
            yield micro
            self._done += micro.num_sequences * context.ranks.size
            context.advance(min(self._done, self._total), self._total)


def _add(sums: dict[str, Tensor], micro: MicroBatch, output: LossOutput, kl: Tensor | None = None) -> None:
    """Add a micro-batch's measures; keep numbers on the device until all are added."""
    shares = {OBJECTIVE: -output.loss.detach(), **output.metrics} | ({} if kl is None else {KL: kl})
    for name, share in shares.items():
        added = micro.weight * share.double()
        sums[name] = sums[name] + added if name in sums else added
