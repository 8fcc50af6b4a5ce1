"""Turn logits into tokens: warpers in transformers' and vLLM's order, NLPO's mask, and a seeded draw."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.errors import WorkerError
from contracts.rollout import MaskRule, Sampling
from contracts.token_sets import top_k_set, top_p_set

BLOCK = 256  # tokens whose probabilities a draw sums together


def sample(
    logits_BV: Tensor, samplings: Sequence[Sampling], uniforms_B: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row; return it and its log-probability under the distribution that drew it.

    Args:
        uniforms_B: one random number in [0, 1) for each row; a draw depends only on it and the row's logits.

    Raises:
        WorkerError: a logit is NaN or infinite.
    """
    check_finite(logits_BV.amax(-1))  # NaN, too, is a row's maximum
    device = logits_BV.device
    uniform_B = torch.tensor(uniforms_B, dtype=torch.float64, device=device)
    alike: dict[tuple[float, int, float], list[int]] = defaultdict(list)
    for row, sampling in enumerate(samplings):
        alike[sampling.temperature, sampling.top_k, sampling.top_p].append(row)
    tokens_B = torch.empty(len(samplings), dtype=torch.long, device=device)
    logprobs_B = torch.empty(len(samplings), device=device)
    for rows in alike.values():
        # In the usual case all rows are alike, and nothing is copied.
        part = slice(None) if len(alike) == 1 else torch.tensor(rows, device=device)
        probabilities_BV = warp(logits_BV[part], samplings[rows[0]])
        is_greedy = samplings[rows[0]].temperature == 0
        drawn_B = probabilities_BV.argmax(-1) if is_greedy else draw(probabilities_BV, uniform_B[part])
        tokens_B[part] = drawn_B
        logprobs_B[part] = probabilities_BV.gather(-1, drawn_B[:, None]).squeeze(-1).log()
    return tokens_B, logprobs_B


def warp(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the sampled distribution's probabilities: temperature, top-k, then top-p, renormalised.

    Top-p keeps the token that crosses p (Holtzman et al. 2020). A temperature of 0 means the most likely
    token; the probabilities are then unwarped.
    """
    if sampling.temperature == 0:
        return logits_BV.softmax(-1)
    if sampling.temperature != 1:
        logits_BV = logits_BV / sampling.temperature
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        logits_BV = logits_BV.masked_fill(~top_k_set(logits_BV, sampling.top_k), -torch.inf)
    probabilities_BV = logits_BV.softmax(-1)
    if sampling.top_p < 1:
        probabilities_BV = probabilities_BV.masked_fill(~top_p_set(probabilities_BV, sampling.top_p), 0)
        probabilities_BV /= probabilities_BV.sum(-1, keepdim=True)
    return probabilities_BV


def draw(probabilities_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Draw a token of each row, (B,), by the inverse of its cumulative distribution.

    The token is the first at which the probabilities sum to more than the row's random number in [0, 1).

    Raises:
        WorkerError: a probability is NaN.
    """
    # Find the block first, then the token in it, because one float64 sum over a large vocabulary takes longer
    # than a small model's forward pass.
    vocab_size = probabilities_BV.shape[-1]
    whole = vocab_size // BLOCK * BLOCK
    blocks_BK = probabilities_BV[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1)
    rest_B1 = probabilities_BV[:, whole:].sum(-1, keepdim=True)
    blocks_BK = torch.cat([blocks_BK, rest_B1], dim=-1).double()
    sum_B1 = blocks_BK.sum(-1, keepdim=True)
    check_finite(sum_B1)
    block_B1, beyond_B1 = _first_beyond(blocks_BK, uniform_B[:, None] * sum_B1)
    tokens_BC = block_B1 * BLOCK + torch.arange(BLOCK, device=block_B1.device)
    inside_BC = probabilities_BV.gather(-1, tokens_BC.clamp(max=vocab_size - 1)).double()
    place_B1, _ = _first_beyond(inside_BC.masked_fill(tokens_BC >= vocab_size, 0), beyond_B1)
    return (block_B1 * BLOCK + place_B1).squeeze(-1)


def drawable_rows(logits_BV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return which rows have a finite likeliest logit, (B,), before and after their temperature.

    >>> drawable_rows(torch.tensor([[1.0, 2.0], [3e38, 0.0]]), [Sampling(1, temperature=0.5)] * 2)
    tensor([ True, False])
    """
    divisors_B = logits_BV.new_tensor([sampling.temperature or 1.0 for sampling in samplings])
    return (logits_BV.amax(-1) / divisors_B).isfinite()


def check_finite(of_rows: Tensor) -> None:
    """Check one value for each row.

    Raises:
        WorkerError: a value is NaN or infinite.
    """
    if not bool(of_rows.isfinite().all()):
        raise WorkerError(
            "the model's logits are not finite: its weights have diverged, or rollout.dtype is too narrow"
        )


def _first_beyond(parts_BK: Tensor, target_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's first part at which the sum exceeds the target, and the target's rest within it."""
    cumulative_BK = parts_BK.cumsum(-1)
    # Because sums are rounded, no draw may fall after the last part with a probability.
    last_B1 = cumulative_BK[:, -1:]
    target_B1 = torch.minimum(target_B1, last_B1.nextafter(torch.zeros_like(last_B1)))
    part_B1 = torch.searchsorted(cumulative_BK, target_B1, right=True)
    before_B1 = cumulative_BK.gather(-1, part_B1) - parts_BK.gather(-1, part_B1)
    return part_B1, (target_B1 - before_B1).clamp(min=0)


def forbid_(logits_BV: Tensor, rows: Sequence[bool], tokens: Sequence[int]) -> Tensor:
    """Exclude `tokens` from the marked rows, in place; return the same tensor."""
    if any(rows) and tokens:
        columns = torch.tensor(tokens, device=logits_BV.device)
        marked_B1 = torch.tensor(rows, device=logits_BV.device)[:, None]
        logits_BV[:, columns] = logits_BV[:, columns].masked_fill(marked_B1, -torch.inf)
    return logits_BV


def penalize_(scores_BV: Tensor, seen: Sequence[Sequence[int]], penalties: Sequence[float]) -> Tensor:
    """Lower the scores of the tokens that each row has seen, in place; return the same tensor.

    A negative score is multiplied by the row's penalty, a positive one divided by it, as in transformers.

    >>> penalize_(torch.tensor([[2.0, -1.0, 3.0]]), [(0, 1, 1)], [2.0])
    tensor([[ 1., -2.,  3.]])
    """
    for row, (tokens, penalty) in enumerate(zip(seen, penalties, strict=True)):
        if penalty != 1:
            columns = torch.tensor(sorted(set(tokens)), device=scores_BV.device)
            scores = scores_BV[row, columns]
            scores_BV[row, columns] = torch.where(scores < 0, scores * penalty, scores / penalty)
    return scores_BV


def with_special_tokens(rule: MaskRule, tokenizer: Any) -> MaskRule:
    """Return the rule; allow the tokenizer's special tokens if the rule keeps them."""
    return replace(rule, always=tuple(tokenizer.all_special_ids)) if rule.keep_special else rule
