"""From logits to a token: the warpers, in transformers' and vLLM's order, and a seeded draw."""

import torch
from torch import Tensor

from contracts.rollout import Sampling


def warp(logits_V: Tensor, sampling: Sampling, forbidden: tuple[int, ...]) -> Tensor:
    """Log-probabilities of the distribution that is sampled from: forbidden tokens out, then
    temperature, top-k, top-p (Holtzman et al. 2020, the token that crosses p is kept), renormalised.

    A temperature of 0 asks for the most likely token; the log-probabilities are then unwarped.
    """
    if forbidden:
        logits_V = logits_V.clone()
        logits_V[list(forbidden)] = -torch.inf
    if sampling.temperature > 0:
        logits_V = logits_V / sampling.temperature
    if 0 < sampling.top_k < logits_V.shape[-1]:
        smallest_kept = logits_V.topk(sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < smallest_kept, -torch.inf)
    if sampling.top_p < 1.0:
        sorted_V, order_V = logits_V.softmax(-1).sort(descending=True)
        dropped_V = order_V[sorted_V.cumsum(-1) - sorted_V >= sampling.top_p]
        logits_V = logits_V.clone()
        logits_V[dropped_V] = -torch.inf
    return logits_V.log_softmax(-1)


def draw(logprobs_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token by the Gumbel-max trick: argmax(log p - log e) with e ~ Exp(1)."""
    if sampling.temperature == 0:
        return int(logprobs_V.argmax())
    noise_V = torch.empty_like(logprobs_V).exponential_(generator=generator)
    return int((logprobs_V - noise_V.log()).argmax())
