"""Responses that another policy wrote, a data set's or older weights: how much their tokens count.

The policy's own rollouts are weighed where weights have changed since they were written: π_old is then the
policy before the update, μ the one that wrote a token, and the ratio π/π_old is clipped apart from the weight
π_old/μ (decoupled PPO; Hilton et al. 2022, arXiv 2110.00641; as in AReaL, arXiv 2505.24298).

A data set's are taken to be drawn from μ, the reference whose log-probabilities they came with. Where there
is a critic, a token counts min(cap, π_old/μ), and its trace min(1, π_old/μ) cuts off what another policy went
on to earn (V-trace, Espeholt et al. 2018, arXiv 1802.01561). Without one, credit is the whole response's, and
so is the weight: min(cap, π_old(y)/μ(y)).
"""

from typing import Literal

import torch
from torch import Tensor

from learner.batching import Batch, MicroBatch
from learner.functional.aggregation import sum_by_response
from learner.functional.kl import k3
from learner.scoring import ScoredBatch

Weighted = Literal["token", "response"]  # each token by its own ratio, or by that of its whole response


def traces(batch: Batch, scored: ScoredBatch) -> Tensor | None:
    """min(1, π_old/μ) of the data's tokens, 1 of the policy's own; None: all are its own."""
    if batch.from_data_B is None or scored.entropies_BT is None:
        return None
    ratios_BT = (scored.logprobs_BT - batch.behavior_logprobs_BT).exp().clamp(max=1.0)
    return ratios_BT.where(batch.from_data_B[:, None], 1.0)


def importance(
    batch: Batch, scored: ScoredBatch, micro: MicroBatch, *, cap: float, own: Weighted | None, by_token: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Truncated weights π_old/μ of a micro-batch's tokens, and of its responses; None: all are 1.

    Args:
        own: how the policy's own rollouts are weighed, too: they were drawn from a warped distribution, or
            by older weights. None: they are not.
        by_token: a token of the data has its own weight; else its response's.
    """
    if scored.entropies_BT is None or not (own or batch.from_data_B is not None):
        return None, None
    log_ratio_N = micro.pick(scored.logprobs_BT) - micro.pick(batch.behavior_logprobs_BT)
    weights_N = log_ratio_N.exp().clamp(max=cap)
    weights_B = sum_by_response(log_ratio_N, micro.responses_N).exp().clamp(max=cap)
    own_N = weights_B[micro.responses_N] if own == "response" else weights_N
    own_B = weights_B
    if batch.from_data_B is None:
        return own_N, own_B
    is_data_N = batch.from_data_B[micro.rows_N]
    is_data_B = batch.from_data_B[micro.rows_N.unique_consecutive()]
    of_data_N = weights_N if by_token else weights_B[micro.responses_N]
    if own is None:
        own_N, own_B = torch.ones_like(weights_N), torch.ones_like(weights_B)
    return of_data_N.where(is_data_N, own_N), weights_B.where(is_data_B, own_B)


def metrics(batch: Batch, scored: ScoredBatch, *, cap: float, by_token: bool) -> dict[str, float]:
    """How far the policy is from the data: weights, how many were truncated, KL(μ‖π_old) a token."""
    if batch.from_data_B is None or scored.entropies_BT is None:
        return {}
    mask_BT = batch.mask_BT & batch.from_data_B[:, None]
    behavior_N, old_N = batch.behavior_logprobs_BT[mask_BT], scored.logprobs_BT[mask_BT]
    log_ratios = old_N - behavior_N
    if not by_token:
        differences_BT = (scored.logprobs_BT - batch.behavior_logprobs_BT) * mask_BT
        log_ratios = differences_BT.sum(-1)[batch.from_data_B]
    weights = log_ratios.exp()
    return {
        "data/weight/mean": float(weights.clamp(max=cap).mean()),
        "data/weight/truncated": float((weights > cap).float().mean()),
        "data/kl": float(k3(behavior_N, old_N).mean()),
    }
