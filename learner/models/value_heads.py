"""Value heads, which predict a prompt's reward from a frozen model's hidden states.

Baheti et al. 2024 (arXiv 2305.14718) use the attention head. _B prompts, _L tokens of a prompt, _H width. A
prompt's value depends only on its tokens, wherever its padding is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contracts.errors import InputError


class ValueHead(nn.Module):
    """Value head: pools hidden states into one vector and maps it to one number, always in float32.

    Args:
        max_value: the highest possible reward; values are σ(x) · max_value. None: values are any number.
        dropout: rate in training, on the hidden states and on the vector.
    """

    def __init__(self, width: int, *, max_value: float | None = 1.0, dropout: float = 0.1) -> None:
        super().__init__()
        self.max_value = max_value
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, 1)

    def forward(self, hidden_BLH: Tensor, mask_BL: Tensor) -> Tensor:
        """Return values (B,); `mask_BL` is 1 at a prompt's tokens, and each prompt has at least one."""
        # Padding may hold any number, and 0 · NaN is NaN.
        hidden_BLH = hidden_BLH.masked_fill(~mask_BL.bool()[:, :, None], 0.0)
        with torch.autocast(hidden_BLH.device.type, enabled=False):
            pooled_BH = self.pooled(self.dropout(hidden_BLH).float(), mask_BL.bool())
            logits_B: Tensor = self.output(self.dropout(pooled_BH)).squeeze(-1)
        return logits_B if self.max_value is None else logits_B.sigmoid() * self.max_value

    def pooled(self, hidden_BLH: Tensor, mask_BL: Tensor) -> Tensor:
        """Return one vector for each prompt, (B, H)."""
        raise NotImplementedError


class MeanValueHead(ValueHead):
    """Value head that takes the mean of the states, then a linear layer."""

    def pooled(self, hidden_BLH: Tensor, mask_BL: Tensor) -> Tensor:
        return (hidden_BLH * mask_BL[:, :, None]).sum(1) / mask_BL.sum(1, keepdim=True)


class MLPValueHead(MeanValueHead):
    """Value head that takes the mean of the states, then two layers."""

    def __init__(self, width: int, *, max_value: float | None = 1.0, dropout: float = 0.1) -> None:
        super().__init__(width, max_value=max_value, dropout=dropout)
        self.hidden = nn.Linear(width, width)

    def pooled(self, hidden_BLH: Tensor, mask_BL: Tensor) -> Tensor:
        return self.hidden(super().pooled(hidden_BLH, mask_BL)).relu()


class AttentionValueHead(ValueHead):
    """Value head of about 4 H² weights: a learned query attends to all states with eight heads, then linear.

    Raises:
        InputError: the heads do not divide the width.
    """

    def __init__(
        self, width: int, *, max_value: float | None = 1.0, dropout: float = 0.1, num_heads: int = 8
    ) -> None:
        if width % num_heads:
            raise InputError(
                f"the model's width {width} can't be shared by the value's {num_heads} attention heads: "
                "expected a divisor of it, or the mean head"
            )
        super().__init__(width, max_value=max_value, dropout=dropout)
        self.query_H = nn.Parameter(torch.randn(width))
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True)

    def pooled(self, hidden_BLH: Tensor, mask_BL: Tensor) -> Tensor:
        query_B1H = self.query_H.expand(len(hidden_BLH), 1, -1)
        found_B1H, _ = self.attention(
            query_B1H, hidden_BLH, hidden_BLH, key_padding_mask=~mask_BL, need_weights=False
        )
        pooled_BH: Tensor = found_B1H.squeeze(1)
        return pooled_BH


VALUE_HEADS: dict[str, type[ValueHead]] = {
    "attention": AttentionValueHead,
    "mean": MeanValueHead,
    "mlp": MLPValueHead,
}
