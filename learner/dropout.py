"""Dropout of a model: its rates, how it is switched off, and the random numbers that it draws.

A learner trains with the model's own dropout or with none; `ModelSettings.drops_out` says which. Importing
this module imports no torch, which takes seconds: a plan reads rates, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

HEADS = ("classif", "summary")  # heads that configurations tell of and language models lack


def rates(config: Mapping[str, Any]) -> dict[str, float]:
    """Rates above 0 in a model's configuration, by name.

    >>> rates({"resid_pdrop": 0.1, "attn_pdrop": 0.0, "attn_config": {"attn_pdrop": 0.2}})
    {'resid_pdrop': 0.1, 'attn_config.attn_pdrop': 0.2}
    """
    found: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": rate for inner, rate in rates(value).items()}
        elif _is_rate(name, value):
            found[name] = float(value)
    return found


def switch_off(config: Any) -> None:
    """Put every rate of a configuration of transformers, and of the configurations within it, to 0."""
    from transformers import PreTrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            switch_off(value)
        elif _is_rate(name, value):
            setattr(config, name, type(value)(0))


def is_on(module: nn.Module, config: Mapping[str, Any]) -> bool:
    """Whether a module in training mode drops anything out, by a layer of its own or by its model's rates."""
    from torch import nn

    return bool(rates(config)) or any(
        isinstance(each, nn.Dropout) and each.p > 0 for each in module.modules()
    )


def seed_update(seed: int, version: int, rank: int) -> None:
    """Begin the random numbers of an update: different for each version and rank, the same at each repeat."""
    import torch

    state = np.random.SeedSequence([seed, version, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Keep a module in evaluation mode between two passes in training mode."""
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True


def _is_rate(name: object, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 and "drop" in str(name) and not str(name).startswith(HEADS)
