"""A policy's trained parameters seen as one vector: what a natural gradient's algebra is about."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from learner.policy import Policy

Result = TypeVar("Result")


class ParameterVector:
    """Only what requires a gradient: with adapters that is the adapters. _P all those numbers, flat.

    Example: a trained matrix of 2 × 3 and a vector of 3 make P = 9; tied parameters count once.
    """

    def __init__(self, policy: Policy) -> None:
        self._caller = _Caller(policy)
        self._trained = {name: p for name, p in self._caller.named_parameters() if p.requires_grad}

    def copy(self) -> Tensor:
        """The parameters' values (P,), which later changes leave alone."""
        return torch.cat([p.detach().flatten() for p in self._trained.values()])

    @torch.no_grad()
    def set(self, values_P: Tensor) -> None:
        """Exactly these values, bit by bit."""
        for name, part in self.parts(values_P).items():
            self._trained[name].copy_(part)

    def take_gradient(self) -> Tensor:
        """What backward passes have added up (P,), and an end to it: the next ones begin at 0."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained.values()]
        gradient_P = torch.cat([part.flatten() for part in parts])
        self._caller.zero_grad(set_to_none=True)
        return gradient_P

    def parts(self, values_P: Tensor) -> dict[str, Tensor]:
        """The vector's pieces, each in its parameter's shape."""
        pieces = values_P.split([p.numel() for p in self._trained.values()])
        return {
            name: piece.view_as(p) for (name, p), piece in zip(self._trained.items(), pieces, strict=True)
        }

    def named(self) -> Mapping[str, nn.Parameter]:
        return self._trained

    def call_with(
        self, parts: Mapping[str, Tensor], function: Callable[..., Result], *arguments: object
    ) -> Result:
        """Call a method of the policy while `parts` stand in for its parameters."""
        result: Result = functional_call(self._caller, dict(parts), (function, *arguments))
        return result


class _Caller(nn.Module):
    """`functional_call` exchanges parameters around a module's forward: this one's calls anything."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, function: Callable[..., Result], *arguments: object) -> Result:
        return function(*arguments)
