"""Optimiser, learning-rate schedule, and separate gradient clipping for actor and critic."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from contracts.errors import LearnerError
from learner.algorithms.base import Algorithm, Decays
from learner.distributed.sharding import computes_on, whole
from learner.models.actor_critic import ActorCritic

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Norms of the actor's and the critic's gradients before clipping."""

    policy: float
    critic: float


def build_optimizer(policy: ActorCritic, algorithm: Algorithm) -> torch.optim.Optimizer:
    """Make AdamW or RMSprop over actor and critic, each with its own rate and its own weight decay."""
    options = algorithm.optimizer
    groups = []
    for role, named, rate in (
        ("actor", policy.actor_parameters(), algorithm.learning_rate),
        ("critic", policy.critic_parameters(), algorithm.critic_learning_rate or algorithm.learning_rate),
    ):
        by_decay: dict[float, list[nn.Parameter]] = {options.weight_decay: [], 0.0: []}
        for name, parameter in named:
            if parameter.requires_grad:
                decay = options.weight_decay if decays(name, parameter, options.decays) else 0.0
                by_decay[decay].append(parameter)
        groups += [
            {"params": chosen, "lr": rate, "base_lr": rate, "weight_decay": decay, "role": role}
            for decay, chosen in by_decay.items()
            if chosen
        ]
    if options.name == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=options.alpha, eps=options.eps)
    every = (*policy.actor_parameters(), *policy.critic_parameters())
    # One kernel for a whole group, without copies of it. On a CPU it would round otherwise than records did.
    fused = True if all(computes_on(parameter) == "cuda" for _, parameter in every) else None
    return torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), eps=options.eps, fused=fused)


def decays(name: str, parameter: nn.Parameter, which: Decays) -> bool:
    """Return whether weight decay acts on a parameter, by its name and shape.

    >>> norm = nn.Parameter(torch.ones(8))
    >>> [decays("h.0.ln_1.weight", norm, which) for which in ("matrices", "all_but_biases", "all")]
    [False, True, True]
    """
    if which == "all":
        return True
    if "bias" in name:  # both sources count T5's relative_attention_bias, a matrix, as a bias, too
        return False
    return "LayerNorm.weight" not in name if which == "all_but_biases" else parameter.ndim > 1


def schedule_factor(
    schedule: Schedule, iteration: int, iterations: int, warmup: int, end: float = 0.0
) -> float:
    """Return the factor by which the learning rate is multiplied in iteration 1, 2 … `iterations`.

    Args:
        end: the factor that a falling schedule would reach after the last iteration.

    >>> [schedule_factor("linear", i, 4, 0) for i in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [schedule_factor("linear", i, 4, 0, end=0.5) for i in (1, 2, 3, 4)]
    [1.0, 0.875, 0.75, 0.625]
    >>> schedule_factor("constant", 1, 100, 10)
    0.1
    """
    if iteration <= warmup:
        return iteration / warmup
    progress = min(1.0, (iteration - warmup - 1) / max(1, iterations - warmup))
    if schedule == "constant":
        return 1.0
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return end + (1.0 - end) * left


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def clip_gradients(policy: ActorCritic, max_norm: float | None) -> GradientNorms:
    """Clip the actor's and the critic's gradients separately; return their norms before clipping.

    So a large value error can't shrink the policy's step. A shared trunk counts as the actor's.

    Raises:
        LearnerError: a gradient is infinite or NaN, and a step with it would destroy the weights.
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
