"""Signs of trouble in a batch of rollouts: repetition, rewarded length, equal rewards, cut prompts."""

import statistics
from collections.abc import Sequence

import numpy as np

from contracts.roles import by_role, earned
from contracts.rollout import Rollout

GRAM = 4  # tokens in an n-gram
BITS = 64 // GRAM  # bits of each token, if an n-gram is stored as one integer
MOST = 64  # rollouts that are checked for repetition, so that long texts cost only milliseconds


def repetition(tokens: Sequence[int] | np.ndarray) -> float:
    """Return the share of 4-grams that occurred earlier in the text; 0 for a text without a 4-gram.

    Known as seq-rep-4 (Welleck et al. 2020, arXiv 1908.04319).

    >>> repetition([1, 2, 3, 4, 1, 2, 3, 4]), repetition([7] * 13), repetition([1, 2, 3])
    (0.2, 0.9, 0.0)
    """
    count = len(tokens) - GRAM + 1
    return (count - _num_different(np.asarray(tokens), count)) / count if count > 0 else 0.0


def _num_different(tokens: np.ndarray, count: int) -> int:
    """Return the number of different 4-grams. If all token ids are small, store a 4-gram as one integer."""
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
        longest_prompt: tokens to which longer prompts are cut; None: no limit.
        is_judged: whether the rollouts have rewards.
        by_token, discount: how the algorithm compares rollouts, as in `contracts.roles.earned`.

    Example: `{"response_repetition/mean": 0.02, "reward/min": 0.0, "reward/max": 1.0,
    "reward/length_correlation": -0.1, "groups/constant": 0.25, "prompts/cut": 0.0}`. A batch without groups,
    rewards or limit has no such key.
    """
    some = sorted(rollouts, key=lambda rollout: rollout.lease_id)[:: -(-len(rollouts) // MOST)]
    repeated = [repetition(turn.array("tokens")) for rollout in some for turn in rollout.turns]
    signs = {"response_repetition/mean": statistics.fmean(repeated)}
    if is_judged and rollouts[0].turns[-1].reward is not None:
        totals = [rollout.total_reward for rollout in rollouts]
        roles = by_role(rollouts)  # as the learner compares them: a debate's two rewards may add up to 0
        of_roles = [role.total_reward for role in roles]
        signs |= {"reward/min": min(of_roles), "reward/max": max(of_roles)}
        lengths = [rollout.num_generated for rollout in rollouts]
        if len(set(totals)) > 1 and len(set(lengths)) > 1:
            signs["reward/length_correlation"] = statistics.correlation(totals, lengths)
        rewards: dict[int, list[tuple[float, ...]]] = {}
        for role in roles:
            compared = earned(role.turns, by_token=by_token, discount=discount)
            rewards.setdefault(role.group, []).append(compared)
        groups = [group for group in rewards.values() if len(group) > 1]
        if groups:
            signs["groups/constant"] = statistics.fmean(len(set(group)) == 1 for group in groups)
    if longest_prompt is not None:
        signs["prompts/cut"] = statistics.fmean(
            rollout.turns[0].num_observed >= longest_prompt for rollout in rollouts
        )
    return signs
