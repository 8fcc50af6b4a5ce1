"""Score a batch before its update; decide which passes to run and which scores are already known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.batches.batching import Batch
from learner.batches.splitting import split_rows
from learner.distributed.ranks import Ranks
from learner.functional.support import SamplingDistribution
from learner.models.actor_critic import reference_of
from learner.passes.early_scores import EarlyScores
from learner.passes.held_out import measure_tokens
from learner.passes.known_passes import (
    PassInputs,
    compared_rollouts,
    first_scores_come_with_the_update,
    scored_share,
    scores_come_with_the_update,
)
from learner.passes.mismatched_kl import mismatched_kl
from learner.passes.operations import Passes, passes_of
from learner.passes.scoring import Models, ScoredBatch, score, score_by
from learner.settings import LearnerSettings, ModelSettings


class Scorer:
    """Scores of batches by one learner's models, with its settings."""

    def __init__(
        self,
        models: Models,
        algorithm: Algorithm,
        settings: LearnerSettings,
        distribution: SamplingDistribution,
        model_settings: ModelSettings,
        *,
        autocast: Callable[[], torch.autocast],
        ranks: Ranks,
        order: Callable[[int, int], Tensor] | None = None,
    ) -> None:
        """Score by these models.

        Args:
            order: draws the order of an update's rollouts, as `UpdateContext.order`; None: all rollouts need
                a pass.
        """
        self._models, self._algorithm, self._settings = models, algorithm, settings
        self._distribution, self._model_settings = distribution, model_settings
        self._autocast, self._ranks = autocast, ranks
        self._early, self._order = EarlyScores(), order

    def __call__(
        self, batch: Batch, rollouts: Sequence[Rollout], version: int, advance: Callable[[int], None]
    ) -> ScoredBatch:
        """Return a batch's scores; call `advance(sequences done)` after each micro-batch.

        Args:
            rollouts: the batch's rollouts.
            version: number of the weights that the update will change.
        """
        if self._algorithm.traits.learns_from == "data":
            return self._of_data(batch, rollouts, advance)
        if not self._algorithm.traits.online:
            return ScoredBatch.unscored(batch)
        self._models.pair.eval()
        compared = compared_rollouts(self._algorithm, batch.num_rollouts)
        with_reference = len(compared) == batch.num_rollouts
        with self._autocast(), self._ranks.at_hand():
            inputs = self._inputs(batch.num_rollouts, has_data=batch.from_data_B is not None)
            if scores_come_with_the_update(self._algorithm, **inputs):
                scored = ScoredBatch.by_the_update(batch, self._distribution)
                with_reference = False
            elif (later_R := self._later_minibatches(batch, version, inputs)) is not None:
                scored = replace(self._passes(batch, later_R, False, advance), by_update=True)
                with_reference = False
            else:
                scored = self._early.complete(
                    version, batch, lambda rows_R: self._passes(batch, rows_R, with_reference, advance)
                )
            if with_reference or not compared or self._models.reference is None:
                return scored
            return scored.compared(
                self._models.reference, batch, compared, self._settings.token_budget, self._ranks, advance
            )

    def scores_early(self, num_rollouts: int) -> bool:
        """Return whether parts of a batch of `num_rollouts` can be scored before the rest is there.

        Several ranks would have to agree on the parts, and a restriction of tokens belongs to a batch.
        """
        distribution = self._distribution
        plain = not distribution.restricts and distribution.ignored_mask is None
        return (
            self._algorithm.traits.online
            and self._ranks.size == 1
            and plain
            and not scores_come_with_the_update(self._algorithm, **self._inputs(num_rollouts, has_data=False))
        )

    def early(self, batch: Batch, version: int) -> None:
        """Score a part of the next batch, and keep the scores for it."""
        self._models.pair.eval()
        with_reference = len(compared_rollouts(self._algorithm, batch.num_rollouts)) == batch.num_rollouts
        with self._autocast(), self._ranks.at_hand():
            every_B = torch.arange(batch.num_rollouts)
            self._early.keep(version, batch, self._passes(batch, every_B, with_reference, lambda _done: None))

    def forget(self) -> None:
        """Forget early scores, because the weights have changed."""
        self._early = EarlyScores()

    def _passes(
        self, batch: Batch, rows_R: Tensor, with_reference: bool, advance: Callable[[int], None]
    ) -> ScoredBatch:
        kl, models = self._algorithm.kl, self._models
        return score(
            batch,
            Models(models.pair, models.reference if with_reference else None, models.mask),
            self._distribution,
            self._settings.token_budget,
            advance,
            with_values=self._algorithm.traits.critic,
            with_full_kl=kl.placement == "reward" and kl.sums_vocabulary,
            rows_R=rows_R,
            ranks=self._ranks,
        )

    def _inputs(self, num_rollouts: int, *, has_data: bool) -> PassInputs:
        return PassInputs(
            num_rollouts=num_rollouts,
            restricts=self._distribution.restricts,
            has_data=has_data,
            drops_out=self._model_settings.any_dropout(self._algorithm),
        )

    def passes(self, batch: Batch, epochs: float) -> Passes:
        """Return the passes over a batch for an update of `epochs` epochs."""
        inputs = self._inputs(batch.num_rollouts, has_data=batch.from_data_B is not None)
        share = scored_share(self._algorithm, **inputs)
        if self._ranks.size > 1:
            share = float(share > 0)
        separate = self._model_settings.value_trunk == "separate"
        return passes_of(self._algorithm, batch.num_rollouts, share, separate_critic=separate, epochs=epochs)

    def _later_minibatches(self, batch: Batch, version: int, inputs: PassInputs) -> Tensor | None:
        """Return the rollouts after the update's first minibatch, whose scores come from the update's pass.

        Return None if all rollouts need a pass. Several ranks would record different rollouts.
        """
        come = first_scores_come_with_the_update(self._algorithm, **inputs)
        if self._order is None or not come or self._ranks.size > 1 or self._early.has(version):
            return None
        rows_R, algorithm = self._order(batch.num_rollouts, 0), self._algorithm
        first_R, *later = split_rows(batch, rows_R, algorithm.minibatch_size, algorithm.minibatch_counts)
        return torch.cat(later) if later else first_R[:0]

    def measure_tokens(self, batch: Batch, advance: Callable[[int], None]) -> dict[str, float]:
        """Measure how well the policy predicts a batch's responses."""
        policy, budget = self._models.pair.policy, self._settings.token_budget
        with self._autocast(), self._ranks.at_hand():
            return measure_tokens(policy, batch, budget, self._ranks, advance)

    def logprobs(self, batch: Batch, advance: Callable[[int], None]) -> list[list[float]]:
        """Return the policy's log-probabilities of each rollout's tokens."""
        self._models.pair.eval()
        policy, budget = self._models.pair.policy, self._settings.token_budget
        with self._autocast(), self._ranks.at_hand():
            logprobs_BT = score_by(policy, batch, budget, self._ranks, advance=advance)
        lengths = batch.counts_B.tolist()
        return [row[:length] for row, length in zip(logprobs_BT.tolist(), lengths, strict=True)]

    def _of_data(
        self, batch: Batch, rollouts: Sequence[Rollout], advance: Callable[[int], None]
    ) -> ScoredBatch:
        """Score a data set by the reference's log-probabilities. For KTO, a KL replaces the values."""
        scored = self._by_reference(batch, advance)
        if not self._algorithm.traits.mismatched_kl:
            return scored
        pair, reference, budget = self._models.pair, self._models.reference, self._settings.token_budget
        assert reference is not None, "an algorithm with mismatched_kl has loaded its reference"
        pair.eval()
        device = batch.mask_BT.device
        with self._autocast(), self._ranks.at_hand():
            kl = mismatched_kl(rollouts, pair.policy, reference, budget, device, self._ranks, advance)
        return replace(scored, values_BT=kl * batch.mask_BT)

    def _by_reference(self, batch: Batch, advance: Callable[[int], None]) -> ScoredBatch:
        """Score a data set by its stored log-probabilities.

        With QLoRA, compute them with the adapter's 4-bit base.
        """
        if self._model_settings.adapter.kind != "qlora" or not self._algorithm.needs_reference:
            return ScoredBatch.of_data(batch)
        self._models.pair.eval()
        with self._autocast():
            reference, budget = reference_of(self._models.pair), self._settings.token_budget
            ref_BT = score_by(reference, batch, budget, advance=advance)
        return ScoredBatch.of_data(batch, ref_BT)
