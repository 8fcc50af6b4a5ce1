"""Activations in one kernel: rollout workers and learner compute them alike.

GPT-2's GELU is eight elementwise operations in transformers, each a pass over memory, forth and back.
"""

from typing import Any


def fuse_activations(model: Any) -> None:
    """Replace each GELU in its tanh form by PyTorch's own kernel for it; the values agree to rounding.

    The configuration stays as it is, and so does a saved model.
    """
    from transformers.activations import FastGELUActivation, GELUTanh, NewGELUActivation

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation | FastGELUActivation):
                setattr(module, name, GELUTanh())
