"""Attention in float32 on a CPU, also where the learner's products are in bfloat16.

PyTorch's bfloat16 kernel for CPUs takes ten times as long backwards: 16 sequences of 64 tokens, 12 heads of
64, forth and back, 64 ms beside 7 ms (two cores with AMX). Products of weights gain from bfloat16, and stay.
"""

from typing import Any

import torch
from torch import Tensor


def attend_in_float32() -> None:
    """Let models of transformers with "sdpa" attention compute it in float32 on CPUs, in this process."""
    from transformers import AttentionInterface

    AttentionInterface.register("sdpa", attend)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return attention's output in the type of `value`, as transformers' own function does."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return found
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **options
        )
    return output.to(value.dtype), None
