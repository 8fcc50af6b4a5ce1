"""KL of a policy to the reference, by responses to other prompts than their own: KTO's reference point.

Ethayarajh et al. 2024 (arXiv 2402.01306), §4.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from contracts.rollout import Rollout
from learner.batching import collate
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
    """Return max(0, mean log π/π_ref) of the responses, each to the prompt before it; 0 if none fits.

    Args:
        advance: as for `score_by`; each of both passes begins anew.
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
    """Return each prompt with the response of the next rollout; leave out those of the same prompt.

    A response is cut where the sequence would be longer than all that the rollouts have.

    Example: (3, 4)→(5, 2) and (6,)→(7, 2) give (3, 4)→(7, 2) and (6,)→(5, 2).
    """
    longest = max(len(each.tokens) for each in rollouts)
    following = [*rollouts[1:], *rollouts[:1]]
    return [
        _answered(own, other, longest)
        for own, other in zip(rollouts, following, strict=True)
        if own.turns[0].observation != other.turns[0].observation
    ]


def _answered(own: Rollout, other: Rollout, longest: int) -> Rollout:
    prompt, said = own.turns[0].observation, other.turns[0]
    end = longest - len(prompt)
    turn = replace(
        said,
        observation=prompt,
        tokens=said.tokens[:end],
        behavior_logprobs=said.behavior_logprobs[:end],
        weight_versions=said.weight_versions[:end],
    )
    return replace(own, turns=(turn,))
