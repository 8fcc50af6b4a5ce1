"""Attention in float32 on a CPU, also where the learner's products are in bfloat16.

PyTorch's bfloat16 kernel for CPUs takes nine times as long, forth and back: 64 ms beside 7 ms, on two cores
with AMX, for 16 sequences of 64 tokens and 12 heads of 64. Products of weights stay in bfloat16.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_ROUNDS: ContextVar[bool] = ContextVar("rounds", default=False)


def attend_in_float32() -> None:
    """Let models of transformers with "sdpa" attention compute it in float32 on CPUs, in this process."""
    from transformers import AttentionInterface

    AttentionInterface.register("sdpa", attend)


@contextmanager
def rounding_attention() -> Iterator[None]:
    """Compute attention in bfloat16 under autocast, as engines do: a probe measures what that changes."""
    before = _ROUNDS.set(True)
    try:
        yield
    finally:
        _ROUNDS.reset(before)


def rounds_attention() -> bool:
    """Return whether `rounding_attention` is open; False in a compiled graph, which can't read the variable.

    Compiled blocks call it before they enter a graph, and stay plain where it is True.
    """
    return not torch.compiler.is_compiling() and _ROUNDS.get()


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return attention's output in the type of `value`, as transformers' own function does."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or rounds_attention():
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    inputs = (query, key, value, attention_mask)
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(
            module, *map(_exact, inputs), **{name: _exact(option) for name, option in options.items()}
        )
    return output.to(value.dtype), None


def _exact(option: Any) -> Any:
    """Return a tensor of numbers in float32, and all else as it is: T5's position bias is an option."""
    return option.float() if isinstance(option, Tensor) and option.is_floating_point() else option
