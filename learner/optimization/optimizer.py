"""Optimiser with learning rates and gradient clipping for actor and critic."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from contracts.errors import LearnerError
from learner.algorithms.base import Algorithm, Decays
from learner.distributed.sharding import whole
from learner.models.actor_critic import ActorCritic


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Norms of the actor's and the critic's gradients before clipping."""

    policy: float
    critic: float


def build_optimizer(policy: ActorCritic, algorithm: Algorithm) -> torch.optim.Optimizer:
    """Make AdamW or RMSprop over actor and critic, each with a learning rate and a weight decay."""
    options = algorithm.optimizer
    groups: list[dict[str, Any]] = []
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
    # The fused kernel passes over each parameter once, without copies: three times as fast on a CPU, where it
    # ignores strides.
    fused = all(parameter.is_contiguous() for group in groups for parameter in group["params"])
    return torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), eps=options.eps, fused=fused)


def decays(name: str, parameter: nn.Parameter, which: Decays) -> bool:
    """Return whether weight decay acts on a parameter, by its name and shape.

    >>> norm = nn.Parameter(torch.ones(8))
    >>> [decays("h.0.ln_1.weight", norm, which) for which in ("matrices", "all_but_biases", "all")]
    [False, True, True]
    """
    if which == "all":
        return True
    if "bias" in name:  # both sources also count T5's relative_attention_bias, a matrix, as a bias
        return False
    return "LayerNorm.weight" not in name if which == "all_but_biases" else parameter.ndim > 1


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def clip_gradients(policy: ActorCritic, max_norm: float | None) -> GradientNorms:
    """Clip the actor's and the critic's gradients separately; return their norms before clipping.

    So a large value error can't shrink the policy's step. A shared trunk belongs to the actor.

    Raises:
        LearnerError: a gradient is infinite or NaN. A step with it would destroy the weights.
    """

    def clip(role: str, parameters: list[tuple[str, nn.Parameter]]) -> float:
        trained = [p for _, p in parameters if p.grad is not None]
        norm = float(whole(nn.utils.clip_grad_norm_(trained, max_norm or math.inf))) if trained else 0.0
        if not math.isfinite(norm):
            raise LearnerError(
                f"the {role}'s gradient is not finite (norm {norm}), so the step was not made. Try a lower "
                "algorithm.learning_rate="
            )
        return norm

    return GradientNorms(
        policy=clip("actor", policy.actor_parameters()), critic=clip("critic", policy.critic_parameters())
    )
