"""Signs of trouble in a batch of rollouts: repetition, paid length, equal rewards, cut prompts."""

import statistics
from collections.abc import Sequence

import numpy as np

from contracts.roles import by_role, earned
from contracts.rollout import Rollout

GRAM = 4  # tokens that are compared as one
BITS = 64 // GRAM  # of a token in such a number
MOST = 64  # rollouts in which repetition is looked for, so that long texts cost milliseconds


def repetition(tokens: Sequence[int] | np.ndarray) -> float:
    """Return the share of 4-grams that the text has had before; 0 for a text without a 4-gram.

    Known as seq-rep-4 (Welleck et al. 2020, arXiv 1908.04319).

    >>> repetition([1, 2, 3, 4, 1, 2, 3, 4]), repetition([7] * 13), repetition([1, 2, 3])
    (0.2, 0.9, 0.0)
    """
    count = len(tokens) - GRAM + 1
    return (count - _num_different(np.asarray(tokens), count)) / count if count > 0 else 0.0


def _num_different(tokens: np.ndarray, count: int) -> int:
    """Return how many of a text's 4-grams differ; with small tokens a 4-gram is one number."""
    starts = range(GRAM)
    if tokens.max() >= 2**BITS:
        return len(set(zip(*(tokens[start : start + count].tolist() for start in starts), strict=True)))
    numbers = tokens.astype(np.uint64)
    grams = np.zeros(count, np.uint64)
    for start in starts:
        grams = grams << np.uint64(BITS) | numbers[start : start + count]
    return len(set(grams.tolist()))


def batch_signs(
    rollouts: Sequence[Rollout],
    longest_prompt: int | None = None,
    *,
    is_judged: bool = True,
    by_token: bool = False,
    discount: float = 1.0,
) -> dict[str, float]:
    """Return a batch's signs of trouble.

    Args:
        longest_prompt: tokens to which longer prompts are cut; None: none is.
        is_judged: whether the rollouts have rewards.
        by_token, discount: how the algorithm compares rollouts, as in `contracts.roles.earned`.

    Example: `{"response_repetition/mean": 0.02, "reward/min": 0.0, "reward/max": 1.0,
    "reward/length_correlation": -0.1, "groups/constant": 0.25, "prompts/cut": 0.0}`. A batch without groups,
    rewards or limit has no such key.
    """
    some = sorted(rollouts, key=lambda rollout: rollout.lease_id)[:: -(-len(rollouts) // MOST)]
    repeated = [repetition(turn.array("tokens")) for rollout in some for turn in rollout.turns]
    found = {"response_repetition/mean": statistics.fmean(repeated)}
    if is_judged and rollouts[0].turns[-1].reward is not None:
        totals = [rollout.total_reward for rollout in rollouts]
        roles = by_role(rollouts)  # as the learner compares them: a debate's two rewards may add up to 0
        own = [each.total_reward for each in roles]
        found |= {"reward/min": min(own), "reward/max": max(own)}
        lengths = [rollout.num_generated for rollout in rollouts]
        if len(set(totals)) > 1 and len(set(lengths)) > 1:
            found["reward/length_correlation"] = statistics.correlation(totals, lengths)
        rewards: dict[int, list[tuple[float, ...]]] = {}
        for each in roles:
            compared = earned(each.turns, by_token=by_token, discount=discount)
            rewards.setdefault(each.group, []).append(compared)
        groups = [group for group in rewards.values() if len(group) > 1]
        if groups:
            found["groups/constant"] = statistics.fmean(len(set(group)) == 1 for group in groups)
    if longest_prompt is not None:
        found["prompts/cut"] = statistics.fmean(
            rollout.turns[0].num_observed >= longest_prompt for rollout in rollouts
        )
    return found
