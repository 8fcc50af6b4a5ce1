"""Decide whether a batch's scoring can leave out the policy's own pass.

An update of one gradient step reads old log-probabilities that equal those of its own forward pass. So that
pass gives them, and with them the entropies. Anything that needs them earlier keeps the pass: a critic's
values, a KL in the reward, importance weights, a restricted distribution.
"""

from learner.algorithms.base import Algorithm
from learner.batching import Batch
from learner.functional.support import SamplingDistribution
from learner.off_policy import ImportanceLevel


def scores_come_with_the_update(
    algorithm: Algorithm,
    batch: Batch,
    distribution: SamplingDistribution,
    importance_level: ImportanceLevel | None,
    *,
    drops_out: bool,
) -> bool:
    """Return whether the update's forward pass gives the policy's scores, to rounding.

    Args:
        importance_level: of the own rollouts' weights, as in `UpdateContext`.
        drops_out: whether updates run with dropout, which scores do not have.
    """
    traits = algorithm.traits
    one_step = (
        traits.update == "minibatches"
        and algorithm.num_epochs == 1
        and (algorithm.minibatch_size or batch.num_rollouts) >= batch.num_rollouts
    )
    plain = traits.online and not (traits.critic or traits.masks or traits.mismatched_kl or traits.teacher)
    drawn_by_it = batch.from_data_B is None and importance_level is None and not distribution.restricts
    reads_all = algorithm.kl.placement == "loss" and not (drops_out or algorithm.leaves_out_truncated)
    return one_step and plain and drawn_by_it and reads_all
