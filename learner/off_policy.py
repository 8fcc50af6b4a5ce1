"""Importance weights of responses that another policy μ drew: older weights, or a data set's reference.

The policy's own rollouts get weights if an update came between them and this one. π_old is then the policy
before this update, and μ the older policy that drew a token. The ratio π/π_old is clipped separately from the
weight π_old/μ (decoupled PPO; Hilton et al. 2022, arXiv 2110.00641; as in AReaL, arXiv 2505.24298).

A data set's responses count as drawn from μ, the model of their log-probabilities. With a critic, a token
has weight min(cap, π_old/μ), and its trace min(1, π_old/μ) cuts off later rewards of the other policy
(V-trace, Espeholt et al. 2018, arXiv 1802.01561). Without a critic, a response has one advantage and one
weight: min(cap, π_old(y)/μ(y)).
"""

from typing import Literal

import torch
from torch import Tensor

from learner.batching import Batch, MicroBatch
from learner.functional.aggregation import sum_by_response
from learner.functional.kl import k3
from learner.scoring import ScoredBatch

ImportanceLevel = Literal[
    "token", "response"
]  # a token's weight is its own ratio, or the ratio of its whole response


def traces(batch: Batch, scored: ScoredBatch) -> Tensor | None:
    """Return min(1, π_old/μ) for the data's tokens and 1 for the policy's own; None: there are no data."""
    if batch.from_data_B is None or scored.entropies_BT is None:
        return None
    ratios_BT = (scored.old_logprobs_BT - batch.behavior_logprobs_BT).exp().clamp(max=1.0)
    return ratios_BT.where(batch.from_data_B[:, None], 1.0)


def importance(
    batch: Batch,
    scored: ScoredBatch,
    micro: MicroBatch,
    *,
    cap: float,
    own_level: ImportanceLevel | None,
    by_token: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return two truncated weights π_old/μ: of a micro-batch's tokens (N,) and responses (B,).

    Either is None where all of its weights are 1.

    Args:
        own_level: whether the policy's own rollouts get weights by token or by response, where a warped
            distribution or older weights drew them. None: their weights are 1.
        by_token: whether a token of the data has its own weight; otherwise it has its response's.
    """
    if scored.entropies_BT is None or not (own_level or batch.from_data_B is not None):
        return None, None
    log_ratio_N = micro.pick(scored.old_logprobs_BT) - micro.pick(batch.behavior_logprobs_BT)
    weights_N = log_ratio_N.exp().clamp(max=cap)
    weights_B = sum_by_response(log_ratio_N, micro.responses_N).exp().clamp(max=cap)
    own_N = weights_B[micro.responses_N] if own_level == "response" else weights_N
    own_B = weights_B
    if batch.from_data_B is None:
        return own_N, own_B
    is_data_N = batch.from_data_B[micro.rows_N]
    is_data_B = batch.from_data_B[micro.rows_N.unique_consecutive()]
    of_data_N = weights_N if by_token else weights_B[micro.responses_N]
    if own_level is None:
        own_N, own_B = torch.ones_like(weights_N), torch.ones_like(weights_B)
    return of_data_N.where(is_data_N, own_N), weights_B.where(is_data_B, own_B)


def metrics(batch: Batch, scored: ScoredBatch, *, cap: float, by_token: bool) -> dict[str, float]:
    """Return how far the policy is from the data: mean weight, truncated share, KL(μ‖π_old) per token."""
    if batch.from_data_B is None or scored.entropies_BT is None:
        return {}
    mask_BT = batch.mask_BT & batch.from_data_B[:, None]
    behavior_N, old_N = batch.behavior_logprobs_BT[mask_BT], scored.old_logprobs_BT[mask_BT]
    log_ratios = old_N - behavior_N
    if not by_token:
        differences_BT = (scored.old_logprobs_BT - batch.behavior_logprobs_BT) * mask_BT
        log_ratios = differences_BT.sum(-1)[batch.from_data_B]
    weights = log_ratios.exp()
    return {
        "data/weight/mean": float(weights.clamp(max=cap).mean()),
        "data/weight/truncated": float((weights > cap).float().mean()),
        "data/kl": float(k3(behavior_N, old_N).mean()),
    }
