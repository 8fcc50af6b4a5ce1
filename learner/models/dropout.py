"""Dropout of a model: read its rates, switch it off, and seed its random numbers.

A learner trains with the model's dropout or with none, as `ModelSettings.drops_out` decides. This module
imports no torch, which takes seconds, because plans also read rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

HEADS = ("classif", "summary")  # heads in configurations that language models lack


def rates(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates above 0 in a model's configuration, by name.

    >>> rates({"resid_pdrop": 0.1, "attn_pdrop": 0.0, "attn_config": {"attn_pdrop": 0.2}})
    {'resid_pdrop': 0.1, 'attn_config.attn_pdrop': 0.2}
    """
    positive: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            positive |= {f"{name}.{inner}": rate for inner, rate in rates(value).items()}
        elif _is_rate(name, value):
            positive[name] = float(value)
    return positive


def switch_off(config: Any) -> None:
    """Set every rate of a transformers configuration, and of configurations within it, to 0."""
    from transformers import PreTrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            switch_off(value)
        elif _is_rate(name, value):
            setattr(config, name, type(value)(0))


def is_on(module: nn.Module, config: Mapping[str, Any]) -> bool:
    """Return whether a module in training mode applies dropout, by its layers or by its model's rates."""
    from torch import nn

    return bool(rates(config)) or any(
        isinstance(part, nn.Dropout) and part.p > 0 for part in module.modules()
    )


def seed_update(seed: int, version: int, rank: int) -> None:
    """Seed an update's random numbers by version and rank, so that a repeated update draws the same."""
    import torch

    state = np.random.SeedSequence([seed, version, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Keep a module in evaluation mode inside the context; afterwards restore training mode."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _is_rate(name: object, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 and "drop" in str(name) and not str(name).startswith(HEADS)
