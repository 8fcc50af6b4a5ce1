"""Compute the numbers of prompts and of a data set's examples in a mixed batch."""

from dataclasses import dataclass

from contracts.errors import InputError


@dataclass(frozen=True, slots=True)
class Mixture:
    """Composition of an iteration.

    Example: for 64 prompts with 8 responses each and a quarter from pairs, `Mixture(num_prompts=48,
    num_examples=64)` has 384 rollouts of the policy and 128 of the data.
    """

    num_prompts: int  # prompts for the policy
    num_examples: int  # examples of the data: a response each, or the ranked responses of a prompt


def mixture(share: float, num_prompts: int, group_size: int, num_responses: int) -> Mixture:
    """Replace a share of an iteration's prompts, rounded to whole prompts, with examples of the data.

    Args:
        num_prompts: prompts of a whole iteration; each has `group_size` rollouts.
        num_responses: responses of each example.

    Raises:
        InputError: policy or data gets nothing, or the replaced rollouts don't make whole examples.
    """
    replaced = round(share * num_prompts)
    if not 0 < replaced < num_prompts:
        raise InputError(
            f"data.share={share:g} of rollout.prompts_per_iteration={num_prompts} is {replaced} prompts; "
            f"expected at least one for the data and one for the policy; change the share or the prompts"
        )
    num_rollouts = replaced * group_size
    if num_rollouts % num_responses:
        raise InputError(
            f"data.share={share:g} replaces {num_rollouts} rollouts, which groups of "
            f"data.num_responses={num_responses} can't make up; expected a divisor, such as "
            f"{_divisor(num_rollouts)}"
        )
    return Mixture(num_prompts - replaced, num_rollouts // num_responses)


def _divisor(number: int) -> int:
    """Return the least divisor above 1.

    >>> _divisor(12), _divisor(7)
    (2, 7)
    """
    return next(divisor for divisor in range(2, number + 1) if number % divisor == 0)
