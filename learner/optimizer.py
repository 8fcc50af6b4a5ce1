"""The optimiser, its learning-rate schedule, and gradient clipping for actor and critic apart."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from contracts.errors import LearnerError
from learner.actor_critic import ActorCritic
from learner.algorithms.base import Algorithm
from learner.sharding import whole


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Before clipping."""

    policy: float
    critic: float


def build_optimizer(policy: ActorCritic, algorithm: Algorithm) -> torch.optim.Optimizer:
    """AdamW or RMSprop over actor and critic, each with its own rate; vectors (biases, norms) don't decay."""
    options = algorithm.optimizer
    groups = []
    for name, parameters, rate in (
        ("actor", policy.actor_parameters(), algorithm.learning_rate),
        ("critic", policy.critic_parameters(), algorithm.critic_learning_rate or algorithm.learning_rate),
    ):
        trained = [p for _, p in parameters if p.requires_grad]
        for decay in (options.weight_decay, 0.0):
            chosen = [p for p in trained if (p.ndim > 1) == (decay > 0)] if options.weight_decay else trained
            if chosen:
                groups.append(
                    {"params": chosen, "lr": rate, "base_lr": rate, "weight_decay": decay, "role": name}
                )
            if not options.weight_decay:
                break
    if options.name == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=options.alpha, eps=options.eps)
    return torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), eps=options.eps)


def schedule_factor(
    schedule: Literal["constant", "linear", "cosine"], iteration: int, iterations: int, warmup: int
) -> float:
    """What the learning rate is multiplied with in iteration 1, 2 … `iterations`.

    >>> [schedule_factor("linear", i, 4, 0) for i in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> schedule_factor("constant", 1, 100, 10)
    0.1
    """
    if iteration <= warmup:
        return iteration / warmup
    progress = min(1.0, (iteration - warmup - 1) / max(1, iterations - warmup))
    if schedule == "linear":
        return 1.0 - progress
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def clip_gradients(policy: ActorCritic, max_norm: float | None) -> GradientNorms:
    """Clip the actor's and the critic's gradients apart, so that a large value error can't shrink the
    policy's step. A shared trunk counts as the actor's.

    Raises:
        LearnerError: a gradient is infinite or NaN; a step with it would destroy the weights.
    """

    def clip(role: str, parameters: list[tuple[str, nn.Parameter]]) -> float:
        trained = [p for _, p in parameters if p.grad is not None]
        norm = float(whole(nn.utils.clip_grad_norm_(trained, max_norm or math.inf))) if trained else 0.0
        if not math.isfinite(norm):
            raise LearnerError(
                f"the {role}'s gradient has norm {norm}, and a finite one is expected; the weights are "
                "still those of the step before. A lower algorithm.learning_rate= usually helps"
            )
        return norm

    return GradientNorms(
        policy=clip("actor", policy.actor_parameters()), critic=clip("critic", policy.critic_parameters())
    )
