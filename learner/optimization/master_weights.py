"""Hold a model's working weights in bfloat16 and their float32 masters, which the optimiser steps.

Micikevicius et al., "Mixed Precision Training" (ICLR 2018, section 3.1): bfloat16 has 8 bits, so it loses a
step below 1/512 of a weight. The master takes each step. The working weight follows when enough steps add up.

    passes         products of the working weights
    gradients      autograd adds them up in float32
    a step         the parameters show their masters; then the working weights are the rounded masters

Checkpoints, exported models and pushes are written while parameters show their masters.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class MasterWeights:
    """Float32 masters of parameters; the parameters hold bfloat16 working weights from now on.

    Without parameters it does nothing.

    Example: with a weight of 1 and steps of 2^-10, the working weight is 1 for two steps and 1.0078125 after
        a few more, because bfloat16 has no number in between.
    """

    def __init__(self, parameters: Iterable[nn.Parameter] = ()) -> None:
        self._parameters = list(parameters)
        self._masters = [parameter.data for parameter in self._parameters]
        self._working = [master.bfloat16() for master in self._masters]
        self._show(self._working)
        for parameter in self._parameters:
            if parameter.requires_grad:
                parameter.grad_dtype = torch.float32  # in which autograd adds up micro-batches

    def __len__(self) -> int:
        return len(self._parameters)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Let the parameters show their masters; then round the changed masters to working weights."""
        self._show(self._masters)
        try:
            yield
        finally:
            self._round()

    def step_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Let every later step of an optimiser over the parameters move the masters."""

        def show(*_: Any) -> None:
            self._show(self._masters)

        def follow(*_: Any) -> None:
            self._round()

        if self._parameters:
            optimizer.register_step_pre_hook(show)
            optimizer.register_step_post_hook(follow)

    def _show(self, tensors: list[Tensor]) -> None:
        for parameter, tensor in zip(self._parameters, tensors, strict=True):
            parameter.data = tensor

    @torch.no_grad()
    def _round(self) -> None:
        if self._parameters:
            torch._foreach_copy_(self._working, self._masters)
        self._show(self._working)
