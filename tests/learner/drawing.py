"""Rollouts drawn the slow way: token by token from plain models, each distribution cut by its definition."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contracts.rollout import MaskRule, Rollout, Sampling
from tests.learner.tiny import rollout


@dataclass(frozen=True)
class Drawer:
    """A policy, how its tokens are drawn, and what masks them; none of the learner's code is used."""

    lm: Any
    sampling: Sampling
    end: int
    mask_lm: Any = None
    rule: MaskRule | None = None

    def rollouts(self, prompts: Sequence[Sequence[int]], seed: int = 0) -> list[Rollout]:
        generator = torch.Generator().manual_seed(seed)
        return [self._draw(index, prompt, generator) for index, prompt in enumerate(prompts)]

    def _draw(self, index: int, prompt: Sequence[int], generator: torch.Generator) -> Rollout:
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < self.sampling.max_tokens and self.end not in tokens:
            allowed = self.support(prompt, tokens)
            p_V = self.distribution(self.lm, prompt, tokens, allowed)
            tokens.append(int(p_V.multinomial(1, generator=generator)))
            logprobs.append(math.log(float(p_V[tokens[-1]])))
        return rollout(index, prompt, tokens, 0.1 * (sum(tokens) % 7), logprobs=logprobs)

    def distribution(
        self, lm: Any, prompt: Sequence[int], tokens: Sequence[int], allowed: list[int]
    ) -> Tensor:
        """Probabilities (V,) by any model, renormalised over what this drawer allows."""
        logits_V = next_logits(lm, prompt, tokens) / self.sampling.temperature
        p_V = torch.zeros_like(logits_V)
        p_V[allowed] = logits_V[allowed].softmax(-1)
        return p_V

    def logprobs(self, lm: Any, one: Rollout) -> Tensor:
        """Log-probabilities (N,) of a rollout's tokens by any model, within what this drawer allows."""
        (turn,) = one.turns
        return torch.stack(
            [
                self.distribution(lm, turn.observation, before, self.support(turn.observation, before))[
                    token
                ].log()
                for before, token in states(one)
            ]
        )

    def support(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """End tokens out, the mask, then temperature, top-k and top-p of what is left."""
        logits_V = next_logits(self.lm, prompt, tokens)
        left = self.before_the_mask(tokens, len(logits_V))
        if self.rule is not None:
            left = self.masked(prompt, tokens)
        sampling = self.sampling
        left = likeliest_first(logits_V, left)[: sampling.top_k or None]
        return nucleus(logits_V / sampling.temperature, left, sampling.top_p, 1)

    def masked(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Tokens that the mask model allows."""
        assert self.rule is not None
        mask_V = next_logits(self.mask_lm, prompt, tokens)
        left = likeliest_first(mask_V, self.before_the_mask(tokens, len(mask_V)))
        if self.rule.top_k is not None:
            return left[: max(self.rule.top_k, self.rule.min_tokens_to_keep)]
        return nucleus(mask_V, left, self.rule.top_p or 0, self.rule.min_tokens_to_keep)

    def before_the_mask(self, tokens: Sequence[int], vocab_size: int) -> list[int]:
        early = len(tokens) < self.sampling.min_tokens
        return [token for token in range(vocab_size) if not (early and token == self.end)]


def states(one: Rollout) -> Iterator[tuple[list[int], int]]:
    """(what was written before, the next token) for each token."""
    tokens = list(one.turns[0].tokens)
    return ((tokens[:t], token) for t, token in enumerate(tokens))


@torch.no_grad()
def next_logits(lm: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """(V,) in float64."""
    if lm.config.is_encoder_decoder:
        written = torch.tensor([[lm.config.decoder_start_token_id, *tokens]])
        out = lm(input_ids=torch.tensor([prompt]), decoder_input_ids=written, use_cache=False)
    else:
        out = lm(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False)
    logits: Tensor = out.logits[0, -1].double()
    return logits


def likeliest_first(logits_V: Tensor, tokens: Sequence[int]) -> list[int]:
    return sorted(tokens, key=lambda token: -float(logits_V[token]))


def nucleus(logits_V: Tensor, likeliest: Sequence[int], p: float, at_least: int) -> list[int]:
    """The first tokens that hold p of the probability of `likeliest`."""
    p_K, total = logits_V[list(likeliest)].softmax(-1).tolist(), 0.0
    for count, probability in enumerate(p_K, start=1):
        total += probability
        if total >= p and count >= at_least:
            return list(likeliest[:count])
    return list(likeliest)
