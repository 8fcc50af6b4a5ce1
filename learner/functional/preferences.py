"""Losses that learn from preferred and refused responses: DPO, IPO, SimPO, ORPO, KTO and PRO.

Shapes: _B prompts, _K responses of a prompt, best first; a pair is (chosen, rejected). Log-probabilities are
    of responses: sums over tokens, or means if the name says so. Losses are per prompt. The caller divides
    their sum by the number of prompts of the whole minibatch, so that splitting it changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.errors import LearnerError
from learner.functional.aggregation import sum_by_response

if TYPE_CHECKING:
    from torch import Tensor


def by_prompt(
    logprobs_N: Tensor, rows_N: Tensor, num_responses: int, *, mean: bool = False, in_all: int | None = None
) -> Tensor:
    """Return sums or means over each response's tokens, (B, K); a prompt's K responses are neighbours.

    Args:
        num_responses: K.
        in_all: B · K, as for `sum_by_response`.

    >>> import torch
    >>> by_prompt(torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0, 0, 1]), 2).tolist()
    [[-3.0, -4.0]]
    """
    sums_R = sum_by_response(logprobs_N, rows_N, in_all)
    if mean:
        sums_R = sums_R / sum_by_response(rows_N.new_ones(rows_N.shape), rows_N, in_all).clamp(min=1)
    return sums_R.reshape(-1, num_responses)


def dpo(
    logprobs_B2: Tensor,
    ref_logprobs_B2: Tensor | None,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return for each pair (B,) -(1 - ε) log σ(z) - ε log σ(-z), with the margin z.

    z = β ((log π/π_ref)(chosen) - (log π/π_ref)(rejected)).

    Rafailov et al. 2023 (arXiv 2305.18290), eq. 7. Smoothing assumes that a preference is wrong with
    probability ε: Mitchell 2023, "A note on DPO with noisy preferences".

    Args:
        ref_logprobs_B2: None: no reference, as if the reference policy gave both the same probability.
    """
    margins_B = beta * _margins(logprobs_B2, ref_logprobs_B2)
    from torch.nn.functional import softplus

    right_B, wrong_B = softplus(-margins_B), softplus(margins_B)
    return right_B if not label_smoothing else (1 - label_smoothing) * right_B + label_smoothing * wrong_B


def ipo(mean_logprobs_B2: Tensor, mean_ref_logprobs_B2: Tensor | None, *, beta: float = 0.1) -> Tensor:
    """Return (h - 1 / (2β))², with h the difference of log π/π_ref between chosen and rejected.

    Azar et al. 2024 (arXiv 2310.12036), eq. 17, with β for τ. The arguments are means over tokens, as in the
    authors' code and trl, so the margin is per token; sums would follow the paper literally.
    """
    return (_margins(mean_logprobs_B2, mean_ref_logprobs_B2) - 1 / (2 * beta)).square()


def simpo(mean_logprobs_B2: Tensor, *, beta: float = 2.0, gamma: float = 0.5) -> Tensor:
    """Return -log σ(β (p_w - p_l) - γ), with p a response's mean log-probability, without a reference.

    Meng et al. 2024 (arXiv 2405.14734), eq. 6, with the defaults of the authors' code.

    Args:
        gamma: the desired margin of the chosen response.
    """
    from torch.nn.functional import softplus

    return softplus(gamma - beta * _margins(mean_logprobs_B2, None))


def orpo(mean_logprobs_B2: Tensor, *, weight: float = 0.1) -> Tensor:
    """Return -p_w - λ log σ(o_w - o_l), with p a response's mean log-probability, o = p - log(1 - eᵖ).

    The first term is supervised learning of the chosen response, the second compares the odds of both. Hong
    et al. 2024 (arXiv 2403.07691), eqs. 4, 6 and 7, where eᵖ is P(y|x) and `weight` is λ.
    """
    from torch.nn.functional import softplus

    return weight * softplus(-_margins(_log_odds(mean_logprobs_B2), None)) - mean_logprobs_B2[:, 0]


def kto(
    log_ratios_B: Tensor,
    good_B: Tensor,
    reference_point_B: Tensor,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Return λ_D (1 - σ(β (r - z))) of good responses, λ_U (1 - σ(β (z - r))) of others, (B,).

    Ethayarajh et al. 2024 (arXiv 2402.01306), eqs. 7 and 8: λ_y - v(x, y).

    Args:
        log_ratios_B: r = log π/π_ref of each response, a sum over its tokens.
        good_B: True if the response is desirable.
        reference_point_B: z, an estimate of KL(π‖π_ref) without gradient.
    """
    from torch import where

    gains_B = where(good_B, 1.0, -1.0) * beta * (log_ratios_B - reference_point_B)
    return where(good_B, desirable_weight, undesirable_weight) * (-gains_B).sigmoid()


def implicit_rewards(logprobs_BK: Tensor, ref_logprobs_BK: Tensor | None, *, beta: float = 0.1) -> Tensor:
    """Return β log π/π_ref, the reward for which this policy would be optimal."""
    return beta * _log_ratios(logprobs_BK, ref_logprobs_BK).detach()


def pro(
    logprobs_BK: Tensor,
    lengths_BK: Tensor,
    rewards_BK: Tensor,
    *,
    sft_weight: float = 0.05,
    eps: float = 0.0,
) -> Tensor:
    """Return the loss of preference ranking optimisation, plus supervised learning of the best response.

        Σ_{k < K} -log softmax_{j ≥ k}(s_j τ_j)[k]  +  sft_weight (K - 1)² · -log π(y_1)

    with s the mean log-probability of a token, τ_j = r_k - r_j for j > k, and τ_k the largest τ_j. For a pair
    it is -log σ((r_1 - r_2)(s_1 - s_2)). Song et al. 2024 (arXiv 2306.17492).

    Args:
        logprobs_BK: sums; the supervised part is not divided by the length.
        rewards_BK: best first, see `require_ranked`.
        eps: added inside the logarithm. The published code has 1e-10; it matters if all s τ are below -20.
    """
    from torch import cat

    means_BK = logprobs_BK / lengths_BK
    num_responses = logprobs_BK.shape[1]
    losses_B = -sft_weight * (num_responses - 1) ** 2 * logprobs_BK[:, 0]
    for k in range(num_responses - 1):
        gaps_BJ = rewards_BK[:, k : k + 1] - rewards_BK[:, k + 1 :]
        temperatures_BJ = cat([gaps_BJ.amax(-1, keepdim=True), gaps_BJ], dim=-1)
        logits_BJ = means_BK[:, k:] * temperatures_BJ
        norms_B = logits_BJ.logsumexp(-1)
        if eps:
            norms_B = norms_B.logaddexp(norms_B.new_tensor(eps).log())
        losses_B = losses_B + norms_B - logits_BJ[:, 0]
    return losses_B


def require_ranked(rewards_BK: Tensor) -> None:
    """Check that each prompt's rewards are finite and fall strictly from the best response to the worst.

    Raises:
        LearnerError: some rewards do not; the message counts their prompts and shows the first.
    """
    falls_B = rewards_BK.isfinite().all(-1) & (rewards_BK.diff(dim=-1) < 0).all(-1)
    if not bool(falls_B.all()):
        first = int((~falls_B).nonzero()[0])
        raise LearnerError(
            f"{int((~falls_B).sum())} of {len(falls_B)} prompts have rewards that form no ranking, the first "
            f"is prompt {first} with {[round(value, 6) for value in rewards_BK[first].tolist()]}; "
            "expected finite rewards, the highest first, no two the same"
        )


def _margins(logprobs_B2: Tensor, ref_logprobs_B2: Tensor | None) -> Tensor:
    """Return the margin of the chosen over the rejected response, (B,)."""
    ratios_B2 = _log_ratios(logprobs_B2, ref_logprobs_B2)
    return ratios_B2[:, 0] - ratios_B2[:, 1]


def _log_ratios(logprobs_BK: Tensor, ref_logprobs_BK: Tensor | None) -> Tensor:
    return logprobs_BK if ref_logprobs_BK is None else logprobs_BK - ref_logprobs_BK


def _log_odds(logprobs_BK: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of probabilities given as logarithms; 1 counts as just below 1."""
    from torch import finfo

    below_one_BK = logprobs_BK.clamp(max=-finfo(logprobs_BK.dtype).eps)
    return logprobs_BK - (-below_one_BK.expm1()).log()
