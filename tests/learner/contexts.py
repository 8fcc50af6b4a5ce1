"""Contexts of updates, made from a pair and rollouts: for tests that look inside of an update."""

from collections.abc import Sequence
from typing import Any

import torch

from contracts.rollout import Rollout, Sampling
from learner.algorithms.base import Algorithm, Credit
from learner.batches.batching import collate
from learner.functional.support import SamplingDistribution
from learner.models.actor_critic import ActorCritic
from learner.models.policy import Policy
from learner.optimization.optimizer import build_optimizer
from learner.optimization.precision import Precision
from learner.passes.sampling_distribution import repetition_rule
from learner.passes.scoring import Models, score
from learner.settings import LearnerSettings
from learner.updates.context import UpdateContext

UNCUT = Sampling(max_tokens=20)


def make_context(
    pair: ActorCritic,
    rollouts: Sequence[Rollout],
    algorithm: Algorithm,
    *,
    sampling: Sampling = UNCUT,
    reference: Policy | None = None,
    **settings: Any,
) -> UpdateContext:
    """In the rollouts' own order, on the CPU."""
    batch, models = collate(rollouts), Models(pair, reference, None)
    made = LearnerSettings(**{"device": "cpu", "autocast": "none", **settings})
    distribution = SamplingDistribution(sampling, (2,), repetition=repetition_rule(sampling, pair.lm))
    scored = score(batch, models, distribution, made.token_budget, lambda done: None)
    return UpdateContext(
        models=models,
        algorithm=algorithm,
        settings=made,
        optimizer=build_optimizer(pair, algorithm),
        batch=batch,
        scored=scored,
        kl_coefficient=algorithm.kl.coefficient if reference else 0.0,
        max_tokens=sampling.max_tokens,
        precision=Precision(made, torch.device("cpu")),
        advance=lambda done, total: None,
        order=lambda num, epoch: torch.arange(num),
    )


def random_credit(context: UpdateContext, seed: int = 0) -> Credit:
    """An advantage and a return for each token, and 0 where there is none."""
    generator = torch.Generator().manual_seed(seed)
    shape, mask_BT = context.batch.mask_BT.shape, context.batch.mask_BT
    advantages_BT, returns_BT = torch.randn(2, *shape, generator=generator) * mask_BT
    return Credit(advantages_BT, returns_BT)
