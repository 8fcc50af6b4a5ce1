"""Learners and pairs with adapters that are away from their beginning, where they change nothing."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from learner.algorithms.base import Algorithm
from learner.learner import ANY_LENGTH, Learner
from learner.models.actor_critic import ActorCritic
from learner.models.adapter_settings import AdapterSettings
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.tiny import make_pair

Kind = Literal["lora", "qlora"]
KINDS: tuple[Kind, ...] = ("lora", "qlora")


def adapter(kind: Kind = "lora", **options: Any) -> AdapterSettings:
    return AdapterSettings(kind=kind, **{"r": 4, "lora_alpha": 8, **options})


def adapted_pair(path: Path, kind: Kind = "lora", *, model: Any = None, **options: Any) -> ActorCritic:
    return make_pair(path, adapter=adapter(kind, **options), **(model or {}))


def adapted_learner(
    path: Path,
    algorithm: Algorithm,
    kind: Kind = "lora",
    *,
    model: Any = None,
    sampling: Any = ANY_LENGTH,
    adapter_options: Any = None,
    **settings: Any,
) -> Learner:
    return Learner(
        ModelSettings(
            path=str(path),
            adapter=adapter(kind, **(adapter_options or {})),
            **{"dropout": False, **(model or {})},
        ),
        algorithm,
        LearnerSettings(**{"device": "cpu", **settings}),
        seed=0,
        iterations=4,
        sampling=sampling,
    )


@torch.no_grad()
def move(module: nn.Module, size: float = 0.1, seed: int = 3) -> None:
    """Change every parameter that trains, always by the same amount."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


def trained(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}


def frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters() if not p.requires_grad}
