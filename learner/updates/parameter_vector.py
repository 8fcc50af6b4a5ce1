"""Treat a policy's trained parameters as one vector, to compute natural gradients."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from learner.models.policy import Policy

Result = TypeVar("Result")


class ParameterVector:
    """Vector of all parameters that require a gradient, for example an adapter's. _P is its length.

    Example: a trained matrix of 2 × 3 and a vector of 3 make P = 9; tied parameters count once.
    """

    def __init__(self, policy: Policy) -> None:
        self._caller = _Caller(policy)
        self._trained = {name: p for name, p in self._caller.named_parameters() if p.requires_grad}

    def copy(self) -> Tensor:
        """Return a copy of the parameters' values, (P,)."""
        return torch.cat([p.detach().flatten() for p in self._trained.values()])

    @torch.no_grad()
    def set(self, values_P: Tensor) -> None:
        """Set the parameters to exactly these values, bit by bit."""
        for name, part in self.parts(values_P).items():
            self._trained[name].copy_(part)

    def take_gradient(self) -> Tensor:
        """Return the accumulated gradient (P,) and clear it."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained.values()]
        gradient_P = torch.cat([part.flatten() for part in parts])
        self._caller.zero_grad(set_to_none=True)
        return gradient_P

    def parts(self, values_P: Tensor) -> dict[str, Tensor]:
        """Return the vector's parts by parameter name, each in its parameter's shape."""
        pieces = values_P.split([p.numel() for p in self._trained.values()])
        return {
            name: piece.view_as(p) for (name, p), piece in zip(self._trained.items(), pieces, strict=True)
        }

    def named(self) -> Mapping[str, nn.Parameter]:
        return self._trained

    def call_with(
        self, parts: Mapping[str, Tensor], function: Callable[..., Result], *arguments: object
    ) -> Result:
        """Call a method of the policy with `parts` in place of its parameters."""
        result: Result = functional_call(self._caller, dict(parts), (function, *arguments))
        return result


class _Caller(nn.Module):
    """Module whose forward calls any function; `functional_call` replaces parameters around it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, function: Callable[..., Result], *arguments: object) -> Result:
        return function(*arguments)
