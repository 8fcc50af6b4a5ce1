"""Score a batch by one teacher-forced pass of each model.

The pass gives old and reference log-probabilities, values and entropies. For a restricted policy (NLPO's
mask, warped sampling) it also gives the tokens that could be drawn, as bits. One forward pass covers all
tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from contracts.processes import timeline
from contracts.rollout import MaskRule
from contracts.token_sets import mask_set
from learner.batches.batching import Batch, MicroBatch
from learner.batches.fetching import fetched
from learner.batches.splitting import rank_micro_batches
from learner.distributed.ranks import ALONE, Ranks
from learner.functional.kl import k1, k2, k3
from learner.functional.logprobs import WHOLE, Restriction, row_chunks
from learner.functional.repetition import RepetitionPenalty, RepetitionRule, repetition_penalty
from learner.functional.support import SamplingDistribution, allowed_tokens, pack_bits
from learner.models.actor_critic import ActorCritic
from learner.models.policy import Policy
from learner.optimization.kl_control import KLSettings
from learner.passes.kept_supports import KeptSupports, PackedSupports, keep, pack


@dataclass(frozen=True, slots=True)
class Models:
    """Models that score or teach: the trained pair, the frozen reference, and copies of the policy."""

    pair: ActorCritic
    reference: Policy | None
    mask: Policy | None
    average: Policy | None = None  # average of the policy's weights so far, if it is a teacher

    @property
    def copies(self) -> dict[str, Policy]:
        """Return the copies of the policy that change in training, by the names of their files."""
        named = {"mask": self.mask, "average": self.average}
        return {name: copied for name, copied in named.items() if copied is not None}


@dataclass(slots=True)
class MaskStatistics:
    """Statistics of excluded tokens, summed over tokens; tensors until all ranks' sums are added."""

    num_tokens: int = 0
    share_masked: Tensor | float = 0.0  # share of the vocabulary that NLPO's mask excludes
    mass_masked: Tensor | float = 0.0  # share of the policy's probability that NLPO's mask excludes
    num_forced: Tensor | float = 0.0  # drawn tokens that rounding had excluded

    def add_masked(self, logits_NV: Tensor, inside_NV: Tensor) -> None:
        self.share_masked = self.share_masked + (~inside_NV).double().mean(-1).sum()
        self.mass_masked = self.mass_masked + (logits_NV.softmax(-1) * ~inside_NV).sum().double()

    def add_drawn(self, allowed_NV: Tensor, drawn_N1: Tensor) -> None:
        self.num_tokens += len(drawn_N1)
        self.num_forced = self.num_forced + (~allowed_NV.gather(-1, drawn_N1)).sum()

    def add_others(self, ranks: Ranks) -> None:
        """Add the other ranks' counts, and fetch the sums."""
        counts = {"share_masked": self.share_masked, "mass_masked": self.mass_masked}
        sums = fetched(
            {
                name: torch.as_tensor(count, dtype=torch.float64, device=ranks.device)
                for name, count in (counts | {"num_forced": self.num_forced}).items()
            }
        )
        total = ranks.total(sums | {"num_tokens": self.num_tokens})
        self.num_tokens = int(total["num_tokens"])
        self.share_masked, self.mass_masked = total["share_masked"], total["mass_masked"]
        self.num_forced = total["num_forced"]

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; {} if no support was computed, because 0 would be wrong."""
        if not self.num_tokens:
            return {}
        return {
            "mask/share_of_tokens": float(self.share_masked) / self.num_tokens,
            "mask/share_of_probability": float(self.mass_masked) / self.num_tokens,
            "mask/forced_tokens": float(self.num_forced),
        }


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Scores of a batch's tokens, aligned with `Batch.mask_BT` and zero outside of it."""

    old_logprobs_BT: Tensor  # log-probabilities from the policy before the update
    ref_logprobs_BT: Tensor
    values_BT: Tensor
    entropies_BT: Tensor | None
    full_kl_BT: Tensor | None = None  # KL(π_old‖π_ref) over the vocabulary, if needed
    supports: KeptSupports | None = None  # tokens that could be drawn; None: all
    temperature: float = 1.0
    repetition: RepetitionRule | None = None
    mask: MaskStatistics = field(default_factory=MaskStatistics)
    has_reference: bool = True  # False: `ref_logprobs_BT` do not come from a reference
    rollouts: range | None = None  # rollouts that the reference has scored; None: all
    by_update: bool = False  # True: `record` gets the policy's scores from the update's forward pass

    @classmethod
    def unscored(cls, batch: Batch) -> ScoredBatch:
        """Return zeros, for algorithms that imitate and need no scores."""
        zeros_BT = torch.zeros_like(batch.rewards_BT)
        return cls(zeros_BT, zeros_BT, zeros_BT, None, has_reference=False)

    @classmethod
    def of_data(cls, batch: Batch, ref_BT: Tensor | None = None) -> ScoredBatch:
        """Take the scores of a data set from `ref_BT`, or from the data's log-probabilities.

        The data's responses count as drawn from the reference policy. So the data's log-probabilities are the
        reference policy's.
        """
        ref_BT = batch.behavior_logprobs_BT if ref_BT is None else ref_BT
        return cls(ref_BT, ref_BT, torch.zeros_like(ref_BT), None)

    @classmethod
    def by_the_update(cls, batch: Batch, distribution: SamplingDistribution) -> ScoredBatch:
        """Leave room for the policy's scores, which the update records."""
        old_BT, ref_BT, values_BT, entropies_BT = (torch.zeros_like(batch.rewards_BT) for _ in range(4))
        scores = old_BT, ref_BT, values_BT, entropies_BT
        temperature, repetition = distribution.sampling.temperature, distribution.repetition
        return cls(
            *scores, temperature=temperature, repetition=repetition, has_reference=False, by_update=True
        )

    def compared(
        self,
        reference: Policy,
        batch: Batch,
        rollouts: range,
        token_budget: int,
        ranks: Ranks,
        advance: Callable[[int], None],
    ) -> ScoredBatch:
        """Return these scores with the reference's scores of some rollouts."""
        ref_BT = score_by(
            *(reference, batch, token_budget, ranks),
            rows=rollouts,
            restrict=self.restriction,
            advance=advance,
        )
        everything = len(rollouts) == batch.num_rollouts
        return replace(
            self, ref_logprobs_BT=ref_BT, has_reference=True, rollouts=None if everything else rollouts
        )

    def record(self, micro: MicroBatch, logprobs_N: Tensor, entropies_N: Tensor | None) -> None:
        """Keep the policy's scores of a micro-batch, computed with the weights before the update."""
        assert self.entropies_BT is not None and entropies_N is not None, "an update that records has both"
        if micro.weight:
            micro.place(self.old_logprobs_BT, logprobs_N.detach().float())
            micro.place(self.entropies_BT, entropies_N.detach().float())

    def penalty(self, kl: KLSettings) -> Tensor:
        """Return each token's KL penalty on the reward, (B, T); 0 if the KL acts elsewhere or nowhere."""
        if kl.placement == "loss" or not self.has_reference or self.rollouts is not None:
            return torch.zeros_like(self.old_logprobs_BT)
        if self.full_kl_BT is not None:
            return self.full_kl_BT
        estimate = {"k1": k1, "k2": k2, "k3": k3}[kl.estimator]
        return estimate(self.old_logprobs_BT, self.ref_logprobs_BT)

    def restriction(self, micro: MicroBatch) -> Restriction:
        """Return the restriction of a micro-batch's tokens: the same for policy, old policy and reference."""
        bits_NW = None if self.supports is None else self.supports.bits(micro)
        return Restriction(self.temperature, bits_NW, repetition_of(micro, self.repetition))


def repetition_of(micro: MicroBatch, rule: RepetitionRule | None) -> RepetitionPenalty | None:
    """Return the penalty of a micro-batch's tokens; None: no penalty."""
    if rule is None:
        return None
    places = micro.places_N, micro.on_host.num_words
    return repetition_penalty(rule, micro.tokens_SL, micro.loss_mask_SL, *places)


def whole(_micro: MicroBatch) -> Restriction:
    """Return no restriction for any micro-batch."""
    return WHOLE


@torch.no_grad()
def score_by(
    policy: Policy,
    batch: Batch,
    token_budget: int,
    ranks: Ranks = ALONE,
    *,
    rows: range | None = None,
    restrict: Callable[[MicroBatch], Restriction] = whole,
    advance: Callable[[int], None] = lambda _done: None,
) -> Tensor:
    """Return one model's log-probabilities, (B, T), zero outside of the rollouts `rows`; None: of all.

    Args:
        advance: as in `score`.
    """
    logprobs_BT = torch.zeros_like(batch.behavior_logprobs_BT)
    rows_R, done = torch.arange(batch.num_rollouts), 0
    if rows is not None:
        rows_R = rows_R[rows.start : rows.stop : rows.step]
    for micro in rank_micro_batches(batch, rows_R, token_budget, ranks):
        found_N = policy(micro, restrict(micro)).float()
        if micro.weight:
            micro.place(logprobs_BT, found_N)
        done += micro.num_sequences
        advance(min(batch.num_sequences, done * ranks.size))
    ranks.sum(logprobs_BT)
    return logprobs_BT


@torch.no_grad()
def score(
    batch: Batch,
    models: Models,
    distribution: SamplingDistribution,
    token_budget: int,
    advance: Callable[[int], None],
    *,
    with_values: bool = True,
    with_full_kl: bool = False,
    rows_R: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> ScoredBatch:
    """Score rollouts of the batch; call `advance(sequences done)` after each micro-batch.

    Each rank scores its share and gets the others' scores.

    Args:
        rows_R: the rollouts to score, the others get zeros; None: all.
    """
    policy, reference = models.pair.policy, models.reference
    scores_BT = {
        name: torch.zeros_like(batch.rewards_BT) for name in ("old", "entropy", "value", "ref", "kl")
    }
    supports: list[tuple[MicroBatch, PackedSupports]] = []
    done, statistics, unused = 0, MaskStatistics(), MaskStatistics()
    rows_R = torch.arange(batch.num_rollouts) if rows_R is None else rows_R
    for micro in rank_micro_batches(batch, rows_R, token_budget, ranks):
        counted = statistics if micro.weight else unused
        hidden_NH = policy.states(micro)
        penalty, bits_NW = repetition_of(micro, distribution.repetition), None
        if distribution.restricts:
            positions_N = micro.pick(batch.positions_BT)
            bits_NW = support_bits(models, micro, hidden_NH, positions_N, distribution, penalty, counted)
        elif distribution.ignored_mask is not None:
            count_masked(models, micro, hidden_NH, distribution.ignored_mask, counted)
        restriction = Restriction(distribution.sampling.temperature, bits_NW, penalty)
        old_N, entropy_N = policy.evaluate(hidden_NH, micro, True, restriction)
        scores = {"old": old_N, "entropy": entropy_N}
        if with_values:
            with timeline.span("critic scores"):
                scores["value"] = models.pair.critic(policy, micro, hidden_NH)
        if reference is not None:
            with timeline.span("reference scores"):
                ref_hidden_NH = reference.states(micro)
                scores["ref"] = reference.evaluate(ref_hidden_NH, micro, False, restriction)[0]
                if with_full_kl:
                    scores["kl"] = policy.kl_to(reference, hidden_NH, ref_hidden_NH, restriction)
        if not micro.weight:
            continue
        for name, values_N in scores.items():
            assert values_N is not None
            micro.place(scores_BT[name], values_N.float())
        if bits_NW is not None:
            supports.append((micro, pack(bits_NW, policy.vocab_size, policy.logits_budget)))
        done += micro.num_sequences
        advance(min(batch.num_sequences, done * ranks.size))
    # one rank has placed each token; the others have 0 there
    ranks.sum(*scores_BT.values())
    statistics.add_others(ranks)
    return ScoredBatch(
        scores_BT["old"],
        scores_BT["ref"],
        _in_reward_units(models.pair, scores_BT["value"], batch),
        scores_BT["entropy"],
        scores_BT["kl"] if with_full_kl else None,
        keep(supports, batch, policy.vocab_size, ranks) if distribution.restricts else None,
        distribution.sampling.temperature,
        distribution.repetition,
        statistics,
        has_reference=reference is not None,
    )


def support_bits(
    models: Models,
    micro: MicroBatch,
    hidden_NH: Tensor,
    positions_N: Tensor,
    distribution: SamplingDistribution,
    repetition: RepetitionPenalty | None,
    statistics: MaskStatistics,
) -> Tensor:
    """Return the tokens that could be drawn, (N, ⌈V/8⌉) bytes, by the weights that drew the tokens.

    The drawn token is always one of them. If the learner's rounding excludes it, at the edge of a top-p set,
    it is added and counted in `num_forced`.
    """
    policy, mask = models.pair.policy, models.mask
    mask_hidden_NH = mask.states(micro) if mask is not None and distribution.mask else None
    targets_N = micro.targets_N
    bits_NW = torch.empty(
        len(targets_N), -(-policy.vocab_size // 8), dtype=torch.uint8, device=targets_N.device
    )
    # top-p's sorts hold a few more arrays of this size
    for a, b in row_chunks(len(targets_N), policy.vocab_size, policy.logits_budget // 4):
        logits_NV = policy.logits(hidden_NH[a:b]).float()
        if repetition is not None:
            logits_NV = logits_NV * repetition.rows(a, b).factors(logits_NV)
        mask_logits_NV = None
        if mask is not None and mask_hidden_NH is not None:
            mask_logits_NV = mask.logits(mask_hidden_NH[a:b]).float()
        allowed_NV, masked_NV = allowed_tokens(logits_NV, positions_N[a:b], distribution, mask_logits_NV)
        drawn_N1 = targets_N[a:b, None]
        statistics.add_drawn(allowed_NV, drawn_N1)
        if masked_NV is not None:
            statistics.add_masked(logits_NV, masked_NV)
        bits_NW[a:b] = pack_bits(allowed_NV.scatter(-1, drawn_N1, True))
    return bits_NW


def count_masked(
    models: Models, micro: MicroBatch, hidden_NH: Tensor, rule: MaskRule, statistics: MaskStatistics
) -> None:
    """Count the tokens that the mask excludes, if probabilities ignore the mask."""
    policy, mask = models.pair.policy, models.mask
    assert mask is not None
    mask_hidden_NH = mask.states(micro)
    for a, b in row_chunks(len(hidden_NH), policy.vocab_size, policy.logits_budget // 4):
        inside_NV = mask_set(mask.logits(mask_hidden_NH[a:b]).float(), rule)
        statistics.add_drawn(inside_NV, micro.targets_N[a:b, None])
        statistics.add_masked(policy.logits(hidden_NH[a:b]).float(), inside_NV)


def _in_reward_units(pair: ActorCritic, values_BT: Tensor, batch: Batch) -> Tensor:
    norm = pair.value_norm
    return values_BT if norm is None else norm.denormalize(values_BT) * batch.mask_BT
