"""Compute how many prompts of the policy and how many examples of a data set make a mixed batch."""

from dataclasses import dataclass

from contracts.errors import InputError


@dataclass(frozen=True, slots=True)
class Mixture:
    """Composition of an iteration.

    Example: for 64 prompts with 8 responses each and a quarter from pairs, `Mixture(num_prompts=48,
    num_examples=64)` has 384 rollouts of the policy and 128 of the data.
    """

    num_prompts: int  # that the policy answers
    num_examples: int  # of the data: a response each, or the ranked responses of a prompt


def mixture(share: float, num_prompts: int, group_size: int, num_responses: int) -> Mixture:
    """Replace a share of an iteration's prompts, rounded to whole prompts, with examples of the data.

    Args:
        num_prompts: prompts of a whole iteration; each has `group_size` rollouts.
        num_responses: responses of each example.

    Raises:
        InputError: policy or data would get nothing, or the replaced rollouts don't make whole examples.
    """
    replaced = round(share * num_prompts)
    if not 0 < replaced < num_prompts:
        raise InputError(
            f"data.share={share:g} of rollout.prompts_per_iteration={num_prompts} is {replaced} prompts; "
            f"expected at least one, and one left to the policy: give another share, or more prompts"
        )
    num_rollouts = replaced * group_size
    if num_rollouts % num_responses:
        raise InputError(
            f"data.share={share:g} takes the place of {num_rollouts} rollouts, which groups of "
            f"data.num_responses={num_responses} can't make up; expected a divisor, such as "
            f"{_divisor(num_rollouts)}"
        )
    return Mixture(num_prompts - replaced, num_rollouts // num_responses)


def _divisor(number: int) -> int:
    """Return the least divisor above 1.

    >>> _divisor(12), _divisor(7)
    (2, 7)
    """
    return next(each for each in range(2, number + 1) if number % each == 0)
