"""What an update works on: one scored batch, the models, and how the learner computes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.actor_critic import PolicyOutput
from learner.algorithms.base import Algorithm, Credit, LossInputs
from learner.batching import Batch, MicroBatch
from learner.functional.aggregation import sum_by_response
from learner.functional.kl import exact_gradient_kl, forward_kl, k2, k3
from learner.functional.logprobs import Restriction
from learner.scoring import Models, ScoredBatch
from learner.settings import LearnerSettings


@dataclass(frozen=True, slots=True)
class UpdateContext:
    models: Models
    algorithm: Algorithm
    settings: LearnerSettings
    optimizer: torch.optim.Optimizer
    batch: Batch
    scored: ScoredBatch
    kl_coefficient: float
    max_tokens: int  # that a response may have
    autocast: Callable[[], torch.autocast]
    advance: Callable[[int, int], None]  # (rows done, rows in all)
    order: Callable[[int, int], Tensor]  # (rows, epoch) -> a permutation

    def loss_inputs(
        self,
        micro: MicroBatch,
        credit: Credit,
        *,
        num_tokens: int,
        num_rollouts: int,
        with_values: bool = True,
    ) -> LossInputs:
        """One forward of a micro-batch, with everything that a loss may ask for.

        Args:
            with_values: False where the loss is the policy's alone: the critic is spared its pass.
        """
        algorithm, scored = self.algorithm, self.scored
        mask_BT = self.batch.mask_BT[micro.rows_B]

        def tokens(values_BT: Tensor) -> Tensor:
            return values_BT[micro.rows_B][mask_BT]

        with self.autocast():
            restriction = scored.restriction(micro, mask_BT)
            out = self.models.pair(
                micro,
                restriction,
                with_entropy=algorithm.needs_entropy,
                with_values=with_values and algorithm.uses_critic,
            )
            kl_N = self._kl(micro, out, restriction, tokens)
        rows_N = mask_BT.nonzero(as_tuple=True)[0]
        importance_N, importance_B = self._importance(tokens, rows_N)
        if kl_N is not None and importance_N is not None and not algorithm.kl.sums_vocabulary:
            kl_N = kl_N * importance_N  # an estimate is one under tokens of π_old
        old_values_N, returns_N = self.value_targets(micro, credit)
        lengths_B1 = mask_BT.sum(-1, keepdim=True)
        return LossInputs(
            logprobs_N=out.logprobs_N,
            old_logprobs_N=tokens(scored.logprobs_BT),
            advantages_N=tokens(credit.advantages_BT),
            returns_N=returns_N,
            values_N=old_values_N if out.values_N is None else out.values_N,
            old_values_N=old_values_N,
            entropies_N=out.entropies_N,
            kl_N=kl_N,
            rows_N=rows_N,
            lengths_N=lengths_B1.expand_as(mask_BT)[mask_BT],
            num_tokens=num_tokens,
            num_rollouts=num_rollouts,
            max_tokens=self.max_tokens,
            kl_coefficient=self.kl_coefficient,
            importance_N=importance_N,
            importance_B=importance_B,
        )

    def value_targets(self, micro: MicroBatch, credit: Credit) -> tuple[Tensor, Tensor]:
        """(values as predicted at sampling time, returns) in the units that the critic predicts in."""
        mask_BT = self.batch.mask_BT[micro.rows_B]
        old_values_N = self.scored.values_BT[micro.rows_B][mask_BT]
        returns_N = credit.returns_BT[micro.rows_B][mask_BT]
        norm = self.models.pair.value_norm
        if norm is None:
            return old_values_N, returns_N
        return norm.as_predicted(old_values_N), norm.normalize(returns_N)

    def _kl(
        self,
        micro: MicroBatch,
        out: PolicyOutput,
        restriction: Restriction,
        tokens: Callable[[Tensor], Tensor],
    ) -> Tensor | None:
        """The loss's KL term a token, with its gradient; None where KL acts in the reward or not at all."""
        kl, reference = self.algorithm.kl, self.models.reference
        if kl.placement == "reward" or reference is None or self.kl_coefficient == 0:
            return None
        if kl.sums_vocabulary:
            with torch.no_grad():
                ref_hidden_NH = reference.states(micro)
            forward = kl.estimator == "forward_full"
            policy = self.models.pair.policy
            return policy.kl_to(reference, out.hidden_NH, ref_hidden_NH, restriction, forward)
        ref_N, old_N = tokens(self.scored.ref_logprobs_BT), tokens(self.scored.logprobs_BT)
        if kl.estimator == "k1":
            return exact_gradient_kl(out.logprobs_N, old_N, ref_N)
        if kl.estimator == "forward":
            return forward_kl(out.logprobs_N, old_N, ref_N)
        return (k2 if kl.estimator == "k2" else k3)(out.logprobs_N, ref_N)

    def _importance(
        self, tokens: Callable[[Tensor], Tensor], rows_N: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Truncated weights π_old/μ of tokens, and of responses, drawn from another distribution μ."""
        if self.settings.behavior != "importance" or self.scored.entropies_BT is None:
            return None, None
        log_ratio_N = tokens(self.scored.logprobs_BT) - tokens(self.batch.behavior_logprobs_BT)
        cap = self.settings.importance_cap
        log_ratio_B = sum_by_response(log_ratio_N, rows_N)
        return log_ratio_N.exp().clamp(max=cap), log_ratio_B.exp().clamp(max=cap)
