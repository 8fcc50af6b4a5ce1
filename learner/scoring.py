"""One teacher-forced pass a model: old log-probabilities, values, entropies, reference log-probabilities,
and for a restricted policy (NLPO's mask, warped sampling) the tokens that could be drawn, as bits.

One forward of a sequence gives all its tokens; never one forward a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from contracts.rollout import MaskRule
from learner.actor_critic import ActorCritic
from learner.batching import Batch, MicroBatch, micro_batches
from learner.dealing import dealt
from learner.functional.kl import k1, k2, k3
from learner.functional.logprobs import Restriction, row_chunks
from learner.functional.support import Behavior, allowed_tokens, mask_set, pack_bits
from learner.kl_control import KLSettings
from learner.policy import Policy
from learner.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class Models:
    """Who scores: the trained pair, the frozen reference, NLPO's mask model."""

    pair: ActorCritic
    reference: Policy | None
    mask: Policy | None


@dataclass(slots=True)
class MaskStatistics:
    """What a support keeps out, summed over tokens."""

    num_tokens: int = 0
    share_masked: float = 0.0  # of the vocabulary, by NLPO's mask alone
    mass_masked: float = 0.0  # of the policy's probability, by NLPO's mask alone
    num_forced: int = 0  # drawn tokens that rounding had put outside

    def add_masked(self, logits_NV: Tensor, inside_NV: Tensor) -> None:
        self.share_masked += float((~inside_NV).double().mean(-1).sum())
        self.mass_masked += float((logits_NV.softmax(-1) * ~inside_NV).sum())

    def add_others(self, ranks: Ranks) -> None:
        """What the other ranks have counted."""
        found = ranks.total(asdict(self))
        self.num_tokens, self.num_forced = int(found["num_tokens"]), int(found["num_forced"])
        self.share_masked, self.mass_masked = found["share_masked"], found["mass_masked"]

    def metrics(self) -> dict[str, float]:
        """Nothing where no support was computed: a share of 0 would be a claim."""
        if not self.num_tokens:
            return {}
        return {
            "mask/share_of_tokens": self.share_masked / self.num_tokens,
            "mask/share_of_probability": self.mass_masked / self.num_tokens,
            "mask/forced_tokens": float(self.num_forced),
        }


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Aligned with `Batch.mask_BT`; zero outside of it."""

    logprobs_BT: Tensor  # the learner's, before the update: `old_logprobs`
    ref_logprobs_BT: Tensor
    values_BT: Tensor
    entropies_BT: Tensor | None
    full_kl_BT: Tensor | None = None  # KL(π_old‖π_ref) over the vocabulary, where asked for
    bits_BTW: Tensor | None = None  # which tokens could be drawn; None: all
    temperature: float = 1.0
    mask: MaskStatistics = field(default_factory=MaskStatistics)
    has_reference: bool = True  # whether `ref_logprobs_BT` are a reference's

    @classmethod
    def unscored(cls, batch: Batch) -> ScoredBatch:
        """For algorithms that imitate, and need no score."""
        zeros_BT = torch.zeros_like(batch.rewards_BT)
        return cls(zeros_BT, zeros_BT, zeros_BT, None, has_reference=False)

    @classmethod
    def of_data(cls, batch: Batch, ref_BT: Tensor | None = None) -> ScoredBatch:
        """For a data set that was scored before: its responses are taken to be drawn from the reference, so
        that its log-probabilities are those that they came with, or `ref_BT`.
        """
        ref_BT = batch.behavior_logprobs_BT if ref_BT is None else ref_BT
        return cls(ref_BT, ref_BT, torch.zeros_like(ref_BT), None)

    def penalty(self, kl: KLSettings) -> Tensor:
        """The KL that the reward is lessened by, a token; 0 where it acts in the loss."""
        if kl.placement == "loss":
            return torch.zeros_like(self.logprobs_BT)
        if self.full_kl_BT is not None:
            return self.full_kl_BT
        estimate = {"k1": k1, "k2": k2, "k3": k3}[kl.estimator]
        return estimate(self.logprobs_BT, self.ref_logprobs_BT)

    def restriction(self, micro: MicroBatch) -> Restriction:
        """Of a micro-batch's tokens; the same for the policy, its old self and the reference."""
        bits = None if self.bits_BTW is None else micro.pick(self.bits_BTW)
        return Restriction(self.temperature, bits)


@torch.no_grad()
def score_by(policy: Policy, batch: Batch, token_budget: int) -> Tensor:
    """One model's log-probabilities alone, (B, T)."""
    found_BT = torch.zeros_like(batch.behavior_logprobs_BT)
    for micro in micro_batches(batch, torch.arange(batch.num_rollouts), token_budget):
        micro.place(found_BT, policy(micro).float())
    return found_BT


@torch.no_grad()
def score(
    batch: Batch,
    models: Models,
    behavior: Behavior,
    token_budget: int,
    advance: Callable[[int], None],
    *,
    with_values: bool = True,
    with_full_kl: bool = False,
    ranks: Ranks = ALONE,
) -> ScoredBatch:
    """Score every rollout of the batch; `advance(sequences done)` is called after each micro-batch.

    Each rank scores its share, and gets what the others have found.
    """
    policy, reference = models.pair.policy, models.reference
    found = {name: torch.zeros_like(batch.rewards_BT) for name in ("old", "entropy", "value", "ref", "kl")}
    bits_BTW, statistics = _no_bits(batch, policy.vocab_size, behavior), MaskStatistics()
    done, unused = 0, MaskStatistics()
    for micro in dealt(batch, torch.arange(batch.num_rollouts), token_budget, ranks):
        counted = statistics if micro.weight else unused
        hidden_NH = policy.states(micro)
        bits_NW = None
        if bits_BTW is not None:
            positions_N = micro.pick(batch.positions_BT)
            bits_NW = support_bits(models, micro, hidden_NH, positions_N, behavior, counted)
        elif behavior.ignored_mask is not None:
            count_masked(models, micro, hidden_NH, behavior.ignored_mask, counted)
        restriction = Restriction(behavior.sampling.temperature, bits_NW)
        old_N, entropy_N = policy.evaluate(hidden_NH, micro, True, restriction)
        scores = {"old": old_N, "entropy": entropy_N}
        if with_values:
            scores["value"] = models.pair.critic(policy, micro, hidden_NH)
        if reference is not None:
            ref_hidden_NH = reference.states(micro)
            scores["ref"] = reference.evaluate(ref_hidden_NH, micro, False, restriction)[0]
            if with_full_kl:
                scores["kl"] = policy.kl_to(reference, hidden_NH, ref_hidden_NH, restriction)
        if not micro.weight:
            continue
        for name, values_N in scores.items():
            assert values_N is not None
            micro.place(found[name], values_N.float())
        if bits_BTW is not None and bits_NW is not None:
            micro.place(bits_BTW, bits_NW)
        done += micro.num_sequences
        advance(min(batch.num_sequences, done * ranks.size))
    # each token was placed by one rank, and is 0 with the others
    ranks.sum(*found.values(), *([] if bits_BTW is None else [bits_BTW]))
    statistics.add_others(ranks)
    return ScoredBatch(
        found["old"],
        found["ref"],
        found["value"] if models.pair.value_norm is None else _in_reward_units(models.pair, found, batch),
        found["entropy"],
        found["kl"] if with_full_kl else None,
        bits_BTW,
        behavior.sampling.temperature,
        statistics,
    )


def support_bits(
    models: Models,
    micro: MicroBatch,
    hidden_NH: Tensor,
    positions_N: Tensor,
    behavior: Behavior,
    statistics: MaskStatistics,
) -> Tensor:
    """The tokens that could be drawn, (N, ⌈V/8⌉) bytes, by the weights that drew them.

    A drawn token always belongs to them: where the learner's rounding puts it outside, on the edge of
    a top-p set, it is let in and counted.
    """
    policy, mask = models.pair.policy, models.mask
    mask_hidden_NH = mask.states(micro) if mask is not None and behavior.mask else None
    targets_N = micro.targets_N
    bits_NW = torch.empty(
        len(targets_N), -(-policy.vocab_size // 8), dtype=torch.uint8, device=targets_N.device
    )
    # the sorts of top-p hold a few more arrays of that size
    for a, b in row_chunks(len(targets_N), policy.vocab_size, policy.logits_budget // 4):
        logits_NV = policy.logits(hidden_NH[a:b]).float()
        mask_logits_NV = None
        if mask is not None and mask_hidden_NH is not None:
            mask_logits_NV = mask.logits(mask_hidden_NH[a:b]).float()
        allowed_NV, masked_NV = allowed_tokens(logits_NV, positions_N[a:b], behavior, mask_logits_NV)
        drawn_N1 = targets_N[a:b, None]
        statistics.num_tokens += b - a
        statistics.num_forced += int((~allowed_NV.gather(-1, drawn_N1)).sum())
        if masked_NV is not None:
            statistics.add_masked(logits_NV, masked_NV)
        bits_NW[a:b] = pack_bits(allowed_NV.scatter(-1, drawn_N1, True))
    return bits_NW


def count_masked(
    models: Models, micro: MicroBatch, hidden_NH: Tensor, rule: MaskRule, statistics: MaskStatistics
) -> None:
    """What a mask keeps out that probabilities do not count."""
    policy, mask = models.pair.policy, models.mask
    assert mask is not None
    mask_hidden_NH = mask.states(micro)
    for a, b in row_chunks(len(hidden_NH), policy.vocab_size, policy.logits_budget // 4):
        inside_NV = mask_set(mask.logits(mask_hidden_NH[a:b]).float(), rule)
        statistics.num_tokens += b - a
        drawn_N1 = micro.targets_N[a:b, None]
        statistics.num_forced += int((~inside_NV.gather(-1, drawn_N1)).sum())
        statistics.add_masked(policy.logits(hidden_NH[a:b]).float(), inside_NV)


def _no_bits(batch: Batch, vocab_size: int, behavior: Behavior) -> Tensor | None:
    if not behavior.restricts:
        return None
    shape = (*batch.mask_BT.shape, -(-vocab_size // 8))
    return torch.zeros(shape, dtype=torch.uint8, device=batch.mask_BT.device)


def _in_reward_units(pair: ActorCritic, found: dict[str, Tensor], batch: Batch) -> Tensor:
    assert pair.value_norm is not None
    return pair.value_norm.denormalize(found["value"]) * batch.mask_BT
