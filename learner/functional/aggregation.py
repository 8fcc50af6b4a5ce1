"""Weights of tokens in a loss, divided by the minibatch's counts, so that splitting changes no loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


def token_weights(
    lengths_N: Tensor, how: Aggregation, *, num_tokens: int, num_rollouts: int, max_tokens: int
) -> Tensor:
    """Return each token's weight, (N,); a minibatch's weights sum to 1 (`constant`: to less).

    - token_mean     every token counts the same: 1 / tokens (DAPO, arXiv 2503.14476)
    - sequence_mean  every response counts the same: 1 / (its length · responses) (GRPO, arXiv 2402.03300)
    - constant       1 / (longest possible response · responses): no pull towards any length
                     (Dr. GRPO, arXiv 2503.20783)

    Args:
        lengths_N: number of tokens of each token's response.
    """
    if how == "token_mean":
        return (lengths_N * 0 + 1.0) / num_tokens
    if how == "sequence_mean":
        return 1.0 / (lengths_N * num_rollouts)
    return (lengths_N * 0 + 1.0) / (max_tokens * num_rollouts)


def sum_by_response(values_N: Tensor, rows_N: Tensor, num_responses: int | None = None) -> Tensor:
    """Sum over the tokens of each response, (B,); `rows_N` is the response of each token.

    Args:
        num_responses: B; None: the highest of `rows_N` plus 1, for which the CPU waits.
    """
    count = int(rows_N.max()) + 1 if num_responses is None else num_responses
    return values_N.new_zeros(count).index_add(0, rows_N, values_N)
