"""What an update works on: one scored batch, the models, and how the learner computes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.actor_critic import PolicyOutput
from learner.algorithms.base import Algorithm, Credit, LossInputs
from learner.batching import Batch, MicroBatch
from learner.dealing import dealt
from learner.functional.kl import exact_gradient_kl, forward_kl, k2, k3
from learner.functional.logprobs import Restriction
from learner.off_policy import Weighted, importance
from learner.ranks import ALONE, Ranks
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
    advance: Callable[[int, int], None]  # (sequences done, sequences in all)
    order: Callable[[int, int], Tensor]  # (rollouts, epoch) -> a permutation
    own_weights: Weighted | None = None  # how the policy's own rollouts are weighed
    ranks: Ranks = ALONE

    def micro_batches(self, rows_B: Tensor) -> Iterator[MicroBatch]:
        """This rank's share of the sequences of these rollouts, within the budget of tokens."""
        # A product over a whole response needs all of it at once.
        whole = getattr(self.algorithm, "whole_responses", False) or self.own_weights is not None
        budget, groups = self.settings.token_budget, self.whole_groups
        return dealt(self.batch, rows_B, budget, self.ranks, whole_rollouts=whole, whole_groups=groups)

    @property
    def whole_groups(self) -> bool:
        """Whether the loss compares the responses of a prompt, so that it needs all of them at once."""
        return bool(getattr(self.algorithm, "whole_groups", False))

    def minibatches(self, epoch: int) -> Iterator[Tensor]:
        """The rows of one epoch's minibatches; groups that belong together stay so, in their own order."""
        batch, size = self.batch, self.algorithm.minibatch_size or self.batch.num_rollouts
        if not self.whole_groups:
            yield from self.order(batch.num_rollouts, epoch).split(size)
            return
        rows_GK = batch.whole_groups()
        num_groups, group_size = rows_GK.shape
        for groups_G in self.order(num_groups, epoch).split(max(1, size // group_size)):
            yield rows_GK[groups_G].flatten()

    def loss_inputs(
        self,
        micro: MicroBatch,
        credit: Credit,
        *,
        num_tokens: int,
        num_rollouts: int,
        num_values: int | None = None,
        with_values: bool = True,
    ) -> LossInputs:
        """One forward of a micro-batch, with everything that a loss may ask for.

        Args:
            num_values: of the whole minibatch, how many tokens train the critic; None: num_tokens.
            with_values: False where the loss is the policy's alone: the critic is spared its pass.
        """
        algorithm, scored = self.algorithm, self.scored
        with self.autocast():
            restriction = scored.restriction(micro)
            out = self.models.pair(
                micro,
                restriction,
                with_entropy=algorithm.needs_entropy,
                with_values=with_values and algorithm.uses_critic,
            )
            kl_N = self._kl(micro, out, restriction)
        importance_N, importance_B = self._importance(micro)
        if kl_N is not None and importance_N is not None and not algorithm.kl.sums_vocabulary:
            kl_N = kl_N * importance_N  # an estimate is one under tokens of π_old
        old_values_N, returns_N = self.value_targets(micro, credit)
        return LossInputs(
            logprobs_N=out.logprobs_N,
            old_logprobs_N=micro.pick(scored.logprobs_BT),
            advantages_N=micro.pick(credit.advantages_BT),
            returns_N=returns_N,
            values_N=old_values_N if out.values_N is None else out.values_N,
            old_values_N=old_values_N,
            entropies_N=out.entropies_N,
            kl_N=kl_N,
            rows_N=micro.responses_N,
            lengths_N=self.batch.mask_BT.sum(-1)[micro.rows_N],
            num_tokens=num_tokens,
            num_rollouts=num_rollouts,
            num_values=num_values,
            value_mask_N=self.value_mask(micro, credit),
            max_tokens=self.max_tokens,
            kl_coefficient=self.kl_coefficient,
            importance_N=importance_N,
            importance_B=importance_B,
            ref_logprobs_N=micro.pick(scored.ref_logprobs_BT) if scored.has_reference else None,
            group_size=self.batch.whole_groups().shape[1] if self.whole_groups else 1,
        )

    def value_targets(self, micro: MicroBatch, credit: Credit) -> tuple[Tensor, Tensor]:
        """(values as predicted at sampling time, returns) in the units that the critic predicts in."""
        old_values_N, returns_N = micro.pick(self.scored.values_BT), micro.pick(credit.returns_BT)
        norm = self.models.pair.value_norm
        if norm is None:
            return old_values_N, returns_N
        return norm.as_predicted(old_values_N), norm.normalize(returns_N)

    def value_mask(self, micro: MicroBatch, credit: Credit) -> Tensor | None:
        """Which tokens train the critic; None: all."""
        return None if credit.value_mask_BT is None else micro.pick(credit.value_mask_BT)

    def _kl(self, micro: MicroBatch, out: PolicyOutput, restriction: Restriction) -> Tensor | None:
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
        ref_N, old_N = micro.pick(self.scored.ref_logprobs_BT), micro.pick(self.scored.logprobs_BT)
        if kl.estimator == "k1":
            return exact_gradient_kl(out.logprobs_N, old_N, ref_N)
        if kl.estimator == "forward":
            return forward_kl(out.logprobs_N, old_N, ref_N)
        return (k2 if kl.estimator == "k2" else k3)(out.logprobs_N, ref_N)

    def _importance(self, micro: MicroBatch) -> tuple[Tensor | None, Tensor | None]:
        """Truncated weights π_old/μ of tokens, and of responses, drawn from another distribution μ."""
        return importance(
            self.batch,
            self.scored,
            micro,
            cap=self.settings.importance_cap,
            own=self.own_weights,
            by_token=self.algorithm.uses_critic,
        )
