"""Gather the inputs of an algorithm's credit: a batch, its scores, and the learner's running values."""

from torch import Tensor

from learner.algorithms.base import Algorithm, CreditInputs
from learner.batches.batching import Batch
from learner.models.critic import RunningNorm
from learner.off_policy import traces
from learner.passes.scoring import ScoredBatch
from learner.passes.teacher_scores import BatchTeacherScores


def credit_inputs(
    batch: Batch,
    scored: ScoredBatch,
    algorithm: Algorithm,
    value_norm: RunningNorm | None,
    *,
    bootstrap_B: Tensor,
    cut_B: Tensor,
    kl_coefficient: float,
    max_tokens: int,
    reward_deviation: float,
) -> CreditInputs:
    """Return the inputs of `algorithm.credit`.

    Args:
        value_norm: scale of the critic's values; None: they have the returns' scale.
        bootstrap_B: values of truncated contexts.
        cut_B: rollouts that ended at a limit.
        max_tokens: limit of a response over all its turns.
        reward_deviation: standard deviation of all rewards so far.
    """
    teacher = batch.made(BatchTeacherScores.of)
    return CreditInputs(
        rewards_BT=batch.rewards_BT,
        kl_BT=scored.penalty(algorithm.kl),
        values_BT=scored.values_BT,
        mask_BT=batch.mask_BT,
        positions_BT=batch.positions_BT,
        groups_B=batch.groups_B,
        bootstrap_B=bootstrap_B,
        baseline_B=batch.baseline_B,
        kl_coefficient=kl_coefficient,
        traces_BT=traces(batch, scored),
        truncated_B=batch.truncated_B,
        max_tokens=max_tokens,
        reward_deviation=reward_deviation,
        has_token_rewards=batch.has_token_rewards,
        critic_is_new=value_norm is not None and not value_norm.weight,
        cut_B=cut_B if algorithm.bootstraps else None,
        terms=batch.reward_terms,
        entropies_BT=scored.entropies_BT if algorithm.reads_entropies else None,
        teacher_gain_BT=None if teacher is None else teacher.gains(scored.old_logprobs_BT),
    )
