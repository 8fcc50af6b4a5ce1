"""Activations in one kernel: rollout workers and learner compute them alike.

GPT-2's GELU is eight elementwise operations in transformers, each a pass over memory, forth and back.
"""

from typing import Any


def fuse_activations(model: Any, kinds: tuple[type, ...] = ()) -> None:
    """Replace each GELU in its tanh form by PyTorch's own kernel for it; the values agree to rounding.

    The configuration stays as it is, and so does a saved model.

    Args:
        kinds: classes of such GELUs; by default those of transformers.
    """
    from transformers.activations import FastGELUActivation, GELUTanh, NewGELUActivation

    kinds = kinds or (NewGELUActivation, FastGELUActivation)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, kinds):
                setattr(module, name, GELUTanh())
