"""KL of a policy to the reference on responses to other prompts: KTO's reference point.

Ethayarajh et al. 2024 (arXiv 2402.01306), §4.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from contracts.rollout import Rollout
from learner.batches.batching import collate
from learner.distributed.ranks import ALONE, Ranks
from learner.models.policy import Policy
from learner.passes.scoring import score_by


def mismatched_kl(
    rollouts: Sequence[Rollout],
    policy: Policy,
    reference: Policy,
    token_budget: int,
    device: torch.device,
    ranks: Ranks = ALONE,
    advance: Callable[[int], None] = lambda _done: None,
) -> float:
    """Return max(0, mean log π/π_ref) of the responses, each to the previous prompt; 0 if none fits.

    Args:
        advance: as in `score_by`; each of the two passes starts again at 0.
    """
    moved = mismatched(rollouts)
    if not moved:
        return 0.0
    batch = collate(moved, device)
    policy_BT, ref_BT = (
        score_by(model, batch, token_budget, ranks, advance=advance) for model in (policy, reference)
    )
    return max(0.0, float((policy_BT - ref_BT).sum(-1).mean()))


def mismatched(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return each prompt with the response of the next rollout; leave out responses to the same prompt.

    Cut a response where the sequence would be longer than every rollout's.

    Example: (3, 4)→(5, 2) and (6,)→(7, 2) give (3, 4)→(7, 2) and (6,)→(5, 2).
    """
    longest = max(len(rollout.tokens) for rollout in rollouts)
    following = [*rollouts[1:], *rollouts[:1]]
    return [
        _answered(rollout, other, longest)
        for rollout, other in zip(rollouts, following, strict=True)
        if rollout.turns[0].observation != other.turns[0].observation
    ]


def _answered(rollout: Rollout, other: Rollout, longest: int) -> Rollout:
    prompt, answered = rollout.turns[0].observation, other.turns[0]
    end = longest - len(prompt)
    turn = replace(
        answered,
        observation=prompt,
        tokens=answered.tokens[:end],
        behavior_logprobs=answered.behavior_logprobs[:end],
        weight_versions=answered.weight_versions[:end],
    )
    return replace(rollout, turns=(turn,))
