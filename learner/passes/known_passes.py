"""Decide which scoring passes of a batch an update can leave out.

- The policy's pass: an update of one gradient step has old log-probabilities equal to those of its forward
  pass. So that pass gives them, and the entropies. The first of several minibatches is read before any step,
  so the update's pass gives its scores, too; only the others need a scoring pass. A scoring pass of all is
  needed for a critic's values, a KL in the reward, entropies in the credit, a data set's responses, or a
  restricted distribution.
- The reference's pass: if the KL's coefficient is 0, only `kl/mean` reads it, and some responses suffice.
"""

from typing import TypedDict, Unpack

from learner.algorithms.base import Algorithm


class PassInputs(TypedDict):
    """Facts of a batch that decide its passes, from a run's settings."""

    num_rollouts: int
    restricts: bool  # whether the sampler can't draw some tokens
    has_data: bool  # whether the batch has responses that the policy did not write
    drops_out: bool  # whether updates run with dropout, which scores lack


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
    reads_all = not (inputs["drops_out"] or algorithm.leaves_out_truncated or algorithm.reads_entropies)
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
        with_the_update: result of `scores_come_with_the_update`.
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
    """Return whether any update runs the reference policy, which must then be in memory."""
    traits = algorithm.traits
    compares = traits.online and (_loads_teacher(algorithm) or algorithm.kl.is_asked_for)
    teaches = algorithm.own_teacher is not None and algorithm.own_teacher.weights == "first"
    return compares or teaches or traits.mismatched_kl


def _loads_teacher(algorithm: Algorithm) -> bool:
    return algorithm.traits.teacher and not algorithm.asks_teacher


def compared_rollouts(algorithm: Algorithm, num_rollouts: int) -> range:
    """Return which of a batch's rollouts the reference scores.

    Example: of eight, with `algorithm.kl={coefficient: 0, measure_every: 4}`: `range(0, 8, 4)`, the first and
    the fifth.
    """
    acts = _loads_teacher(algorithm) or algorithm.kl.coefficient
    every = 1 if acts else algorithm.kl.measure_every
    return range(0, num_rollouts, every) if every else range(0)


def said_of_passes(algorithm: Algorithm, **inputs: Unpack[PassInputs]) -> list[str]:
    """Describe the passes that an update leaves out, in one phrase each."""
    phrases = []
    if scores_come_with_the_update(algorithm, **inputs):
        phrases.append("old log-probabilities come from the update's pass")
    elif first_scores_come_with_the_update(algorithm, **inputs):
        phrases.append(
            "old log-probabilities of the first minibatch come from the update's pass, except for several "
            "ranks and rollouts scored early"
        )
    if algorithm.traits.online and not (algorithm.traits.teacher or algorithm.kl.coefficient):
        if every := algorithm.kl.measure_every:
            phrases += [f"the reference scores one of {every} responses"] if every > 1 else []
        else:
            phrases.append("there is no reference, and no kl/mean")
    return phrases
