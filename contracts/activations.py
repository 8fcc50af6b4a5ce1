"""Activations in one kernel, the same for rollout workers and the learner.

GPT-2's GELU is eight elementwise operations in transformers. Each passes over memory, forth and back.
"""

from typing import Any


def fuse_activations(model: Any, kinds: tuple[type, ...] = ()) -> None:
    """Replace each GELU in its tanh form by PyTorch's kernel; the values agree to rounding.

    The configuration and saved models do not change.

    Args:
        kinds: classes of these GELUs; by default those of transformers.
    """
    from transformers.activations import FastGELUActivation, GELUTanh, NewGELUActivation

    kinds = kinds or (NewGELUActivation, FastGELUActivation)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, kinds):
                setattr(module, name, GELUTanh())
