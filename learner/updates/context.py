"""Context of an update: one scored batch, the models, and the learner's settings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.algorithms.base import Algorithm, Credit, LossInputs
from learner.batches.batching import Batch, MicroBatch
from learner.batches.splitting import rank_micro_batches, split_rows
from learner.distributed.ranks import ALONE, Ranks
from learner.functional.distribution_kl import MEASURES
from learner.functional.kl import exact_gradient_k3, exact_gradient_kl, forward_kl, k2, k3
from learner.functional.logprobs import Restriction
from learner.models.actor_critic import PolicyOutput
from learner.off_policy import Correction, importance
from learner.optimization.precision import Precision
from learner.passes.scoring import Models, ScoredBatch
from learner.passes.teacher_scores import BatchTeacherScores
from learner.settings import LearnerSettings
from learner.updates.taught_texts import TaughtTexts


@dataclass(frozen=True, slots=True)
class UpdateContext:
    models: Models
    algorithm: Algorithm
    settings: LearnerSettings
    optimizer: torch.optim.Optimizer
    batch: Batch
    scored: ScoredBatch
    kl_coefficient: float
    max_tokens: int  # limit of a response
    precision: Precision
    advance: Callable[[int, int], None]  # (sequences done, sequences in all)
    order: Callable[[int, int], Tensor]  # (rollouts, epoch) -> a permutation
    entropy_coefficient: float | None = None  # factor of the bonus; None: the algorithm's option
    correction: Correction | None = None  # correction of the policy's rollouts; None: their weights are 1
    ranks: Ranks = ALONE

    def micro_batches(self, rows_B: Tensor) -> Iterator[MicroBatch]:
        """Yield this rank's share of these rollouts' sequences, within the token budget."""
        # A product over a whole response needs all of its tokens at once.
        whole = self.algorithm.traits.whole_responses or self.correction is not None
        budget, groups = self.settings.token_budget, self.whole_groups
        return rank_micro_batches(
            self.batch, rows_B, budget, self.ranks, whole_rollouts=whole, whole_groups=groups
        )

    @property
    def whole_groups(self) -> bool:
        """Return whether the loss compares the responses of a prompt, and so needs them together."""
        return self.algorithm.traits.whole_groups

    def minibatches(self, epoch: int, trains_B: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the rows of one epoch's minibatches; `whole_groups` keeps groups together and in order.

        Args:
            trains_B: the rollouts to train on; None: all. A loss on whole groups always gets all.
        """
        batch, size = self.batch, self.algorithm.minibatch_size or self.batch.num_rollouts
        if not self.whole_groups:
            every_B = torch.arange(batch.num_rollouts)
            rows_R = every_B if trains_B is None else torch.from_numpy(trains_B.cpu().numpy().nonzero()[0])
            rows_R, algorithm = rows_R[self.order(len(rows_R), epoch)], self.algorithm
            yield from split_rows(batch, rows_R, algorithm.minibatch_size, algorithm.minibatch_counts)
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
        records: bool = False,
    ) -> LossInputs:
        """Run a micro-batch forward; return all inputs of a loss.

        Args:
            num_values: number of the minibatch's tokens that train the critic; None: num_tokens.
            with_values: False if the loss needs no pass of the critic.
            records: whether the weights are still those before the update, so that this pass records the
                scores.
        """
        algorithm, scored = self.algorithm, self.scored
        with self.precision.autocast():
            restriction = scored.restriction(micro)
            out = self.models.pair(
                micro,
                restriction,
                with_entropy=algorithm.needs_entropy or records,
                with_values=with_values and algorithm.traits.critic,
            )
            if records:  # before anything reads the scores
                scored.record(micro, out.logprobs_N, out.entropies_N)
            kl_N = self._kl(micro, out, restriction)
            taught_N = self._taught(micro, out)
        importance_N, importance_B = self._importance(micro)
        is_estimate = not algorithm.kl.sums_vocabulary and self._top_scores is None
        if kl_N is not None and importance_N is not None and is_estimate:
            kl_N = kl_N * importance_N  # estimates assume tokens of π_old
        old_values_N, returns_N = self.value_targets(micro, credit)
        return LossInputs(
            logprobs_N=out.logprobs_N,
            old_logprobs_N=micro.pick(scored.old_logprobs_BT),
            advantages_N=micro.pick(credit.advantages_BT),
            returns_N=returns_N,
            values_N=old_values_N if out.values_N is None else out.values_N,
            old_values_N=old_values_N,
            entropies_N=out.entropies_N if algorithm.needs_entropy else None,
            kl_N=kl_N,
            rows_N=micro.responses_N,
            lengths_N=micro.lengths_N,
            num_tokens=num_tokens,
            num_rollouts=num_rollouts,
            num_values=num_values,
            value_mask_N=self.value_mask(micro, credit),
            max_tokens=self.max_tokens,
            kl_coefficient=self.kl_coefficient,
            entropy_coefficient=self.entropy_coefficient,
            importance_N=importance_N,
            importance_B=importance_B,
            ref_logprobs_N=micro.pick(scored.ref_logprobs_BT) if scored.has_reference else None,
            group_size=self.batch.whole_groups().shape[1] if self.whole_groups else 1,
            num_responses=micro.num_responses,
            taught_N=taught_N,
        )

    def value_targets(self, micro: MicroBatch, credit: Credit) -> tuple[Tensor, Tensor]:
        """Return values predicted at sampling (N,) and returns (N,), both in the critic's units."""
        old_values_N, returns_N = micro.pick(self.scored.values_BT), micro.pick(credit.returns_BT)
        norm = self.models.pair.value_norm
        if norm is None:
            return old_values_N, returns_N
        return norm.as_predicted(old_values_N), norm.normalize(returns_N)

    def value_mask(self, micro: MicroBatch, credit: Credit) -> Tensor | None:
        """Return the mask (N,) of the tokens that train the critic; None: all tokens do."""
        return None if credit.value_mask_BT is None else micro.pick(credit.value_mask_BT)

    @property
    def _top_scores(self) -> BatchTeacherScores | None:
        """Return a teacher's scores if they have its likeliest tokens, else None."""
        scores = self.batch.made(BatchTeacherScores.of)
        return scores if scores is not None and scores.has_top else None

    def _kl(self, micro: MicroBatch, out: PolicyOutput, restriction: Restriction) -> Tensor | None:
        """Return each token's KL term of the loss, with gradient; None: the loss has no KL term."""
        kl, reference = self.algorithm.kl, self.models.reference
        if (scores := self._top_scores) is not None:
            measure = MEASURES[self.algorithm.teacher_divergence]
            return scores.divergence(self.models.pair.policy, micro, out.hidden_NH, measure)
        if kl.placement == "reward" or reference is None or self.kl_coefficient == 0:
            return None
        if kl.sums_vocabulary:
            with torch.no_grad():
                ref_hidden_NH = reference.states(micro)
            forward = kl.estimator == "forward_full"
            policy = self.models.pair.policy
            return policy.kl_to(reference, out.hidden_NH, ref_hidden_NH, restriction, forward)
        ref_N, old_N = micro.pick(self.scored.ref_logprobs_BT), micro.pick(self.scored.old_logprobs_BT)
        if kl.estimator == "k1":
            return exact_gradient_kl(out.logprobs_N, old_N, ref_N)
        if kl.estimator == "k3_exact":
            return exact_gradient_k3(out.logprobs_N, old_N, ref_N)
        if kl.estimator == "forward":
            return forward_kl(out.logprobs_N, old_N, ref_N)
        return (k2 if kl.estimator == "k2" else k3)(out.logprobs_N, ref_N)

    def _taught(self, micro: MicroBatch, out: PolicyOutput) -> Tensor | None:
        """Return each token's divergence from the policy as teacher, with gradient; None: no teacher."""
        models, kind = self.models, self.algorithm.own_teacher
        if kind is None:
            return None
        policy = models.pair.policy
        teacher = {"live": policy, "first": models.reference, "average": models.average}[kind.weights]
        assert teacher is not None, "the learner has loaded or copied the teacher"
        texts, measure = self.batch.made(TaughtTexts.of), MEASURES[kind.divergence]
        return texts.divergence(policy, teacher, micro, out.hidden_NH, measure, in_step=self.ranks.shards)

    def _importance(self, micro: MicroBatch) -> tuple[Tensor | None, Tensor | None]:
        """Return truncated weights π_old/μ of tokens and of responses; μ is the policy that drew them."""
        return importance(
            self.batch,
            self.scored,
            micro,
            cap=self.settings.importance_cap,
            correction=self.correction,
            by_token=self.algorithm.traits.critic,
            by_mean=self.algorithm.traits.mean_ratio,
        )
