"""Decide which passes of a batch's scoring an update can leave out.

- The policy's own: an update of one gradient step reads old log-probabilities that equal those of its own
  forward pass. So that pass gives them, and with them the entropies. Anything that needs them earlier keeps
  the pass: a critic's values, a KL in the reward, importance weights, a restricted distribution.
- The reference's: where the KL's coefficient is 0, only `kl/mean` reads it, and some responses suffice.
"""

from learner.algorithms.base import Algorithm


def scores_come_with_the_update(
    algorithm: Algorithm, num_rollouts: int, *, restricts: bool, weighs: bool, drops_out: bool
) -> bool:
    """Return whether the update's forward pass gives the policy's scores, to rounding.

    Args:
        num_rollouts: of the batch.
        restricts: whether the sampler can't draw some tokens.
        weighs: whether losses have importance weights, or the batch responses that the policy did not write.
        drops_out: whether updates run with dropout, which scores do not have.
    """
    traits = algorithm.traits
    one_step = (
        traits.update == "minibatches"
        and algorithm.num_epochs == 1
        and (algorithm.minibatch_size or num_rollouts) >= num_rollouts
    )
    plain = traits.online and not (traits.critic or traits.masks or traits.mismatched_kl or traits.teacher)
    reads_all = algorithm.kl.placement == "loss" and not (drops_out or algorithm.leaves_out_truncated)
    return one_step and plain and reads_all and not (restricts or weighs)


def loads_reference(algorithm: Algorithm) -> bool:
    """Return whether any update runs the reference policy, so that it must be in memory."""
    traits = algorithm.traits
    compares = traits.online and (traits.teacher or algorithm.kl.is_asked_for)
    return compares or traits.mismatched_kl


def compared_rollouts(algorithm: Algorithm, num_rollouts: int) -> range:
    """Return which of a batch's rollouts the reference scores.

    Example: of eight, with `algorithm.kl={coefficient: 0, measure_every: 4}`: `range(0, 8, 4)`, the first and
    the fifth.
    """
    acts = algorithm.traits.teacher or algorithm.kl.coefficient
    every = 1 if acts else algorithm.kl.measure_every
    return range(0, num_rollouts, every) if every else range(0)


def said_of_passes(
    algorithm: Algorithm, num_rollouts: int, *, restricts: bool, weighs: bool, drops_out: bool
) -> list[str]:
    """Say which passes an update leaves out, one phrase each; arguments as above."""
    found = []
    if scores_come_with_the_update(
        algorithm, num_rollouts, restricts=restricts, weighs=weighs, drops_out=drops_out
    ):
        found.append("old log-probabilities come from the update's own pass")
    if algorithm.traits.online and not (algorithm.traits.teacher or algorithm.kl.coefficient):
        if every := algorithm.kl.measure_every:
            found += [f"the reference scores one of {every} responses"] if every > 1 else []
        else:
            found.append("there is no reference, and no kl/mean")
    return found
