"""Decide which passes of a batch's scoring an update can leave out.

- The policy's own: an update of one gradient step reads old log-probabilities that equal those of its own
  forward pass. So that pass gives them, and with them the entropies. Of several minibatches the first is read
  before any step, so its scores come the same way, and only the others have a pass of their own. Anything
  that needs them earlier keeps the pass: a critic's values, a KL in the reward, a data set's responses, a
  restricted distribution.
- The reference's: where the KL's coefficient is 0, only `kl/mean` reads it, and some responses suffice.
"""

from typing import TypedDict, Unpack

from learner.algorithms.base import Algorithm


class PassInputs(TypedDict):
    """Facts of a batch on which the passes depend, as a run's settings give them."""

    num_rollouts: int
    restricts: bool  # whether the sampler can't draw some tokens
    has_data: bool  # whether the batch has responses that the policy did not write
    drops_out: bool  # whether updates run with dropout, which scores do not have


def scores_come_with_the_update(algorithm: Algorithm, **inputs: Unpack[PassInputs]) -> bool:
    """Return whether the update's forward pass gives the policy's scores, to rounding."""
    return _is_one_step(algorithm, inputs["num_rollouts"]) and _reads_scores_in_the_update(algorithm, inputs)


def first_scores_come_with_the_update(algorithm: Algorithm, **inputs: Unpack[PassInputs]) -> bool:
    """Return whether the update's forward pass gives the scores of the first of several minibatches."""
    several = not (_is_one_step(algorithm, inputs["num_rollouts"]) or algorithm.traits.whole_groups)
    return several and _reads_scores_in_the_update(algorithm, inputs)


def _is_one_step(algorithm: Algorithm, num_rollouts: int) -> bool:
    whole = (algorithm.minibatch_size or num_rollouts) >= num_rollouts
    return algorithm.num_epochs == 1 and whole


def _reads_scores_in_the_update(algorithm: Algorithm, inputs: PassInputs) -> bool:
    """Return whether nothing before the update reads the policy's scores."""
    traits = algorithm.traits
    plain = traits.online and not (traits.critic or traits.masks or traits.mismatched_kl or traits.teacher)
    in_the_loss = traits.update == "minibatches" and algorithm.kl.placement == "loss"
    reads_all = not (inputs["drops_out"] or algorithm.leaves_out_truncated)
    return plain and in_the_loss and reads_all and not (inputs["restricts"] or inputs["has_data"])


def scored_share(algorithm: Algorithm, **inputs: Unpack[PassInputs]) -> float:
    """Return the share of a batch's rollouts that the policy scores before the update."""
    if scores_come_with_the_update(algorithm, **inputs):
        return 0.0
    if first_scores_come_with_the_update(algorithm, **inputs):
        num_rollouts = inputs["num_rollouts"]
        return 1.0 - min(algorithm.minibatch_size or num_rollouts, num_rollouts) / num_rollouts
    return 1.0


def why_not_early(algorithm: Algorithm, *, restricts: bool, with_the_update: bool) -> str | None:
    """Return why a part of a batch can't be scored before the rest is there; None: it can.

    Args:
        restricts: whether the sampler can't draw some tokens.
        with_the_update: as `scores_come_with_the_update` returns.
    """
    if not algorithm.traits.online:
        return "the algorithm scores nothing"
    if algorithm.divides_rollouts:
        return "the algorithm divides rollouts into turns"
    if algorithm.refills:
        return "algorithm.max_refills chooses the batch at the end"
    if restricts or algorithm.traits.masks:
        return "the tokens that may be drawn are restricted"
    return "its scores come with the update" if with_the_update else None


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


def said_of_passes(algorithm: Algorithm, **inputs: Unpack[PassInputs]) -> list[str]:
    """Say which passes an update leaves out, one phrase each."""
    phrases = []
    if scores_come_with_the_update(algorithm, **inputs):
        phrases.append("old log-probabilities come from the update's own pass")
    elif first_scores_come_with_the_update(algorithm, **inputs):
        phrases.append(
            "old log-probabilities of the first minibatch come from the update's own pass, but for several "
            "ranks and rollouts that are scored early"
        )
    if algorithm.traits.online and not (algorithm.traits.teacher or algorithm.kl.coefficient):
        if every := algorithm.kl.measure_every:
            phrases += [f"the reference scores one of {every} responses"] if every > 1 else []
        else:
            phrases.append("there is no reference, and no kl/mean")
    return phrases
