"""The work of one PPO iteration in bare transformers and PyTorch: no trainer, no bookkeeping, no reward.

This is the least work that any side must do. The value head sits on the policy's trunk, as in Whetstone; trl
trains a second trunk for it.
"""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

CLIP_RANGE, VALUE_COEFFICIENT = 0.2, 0.1


class ActorCritic(nn.Module):
    """A model that returns log-probabilities and values of response tokens, both (batch, new tokens)."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.policy = policy
        self.value = nn.Linear(policy.config.n_embd, 1)

    def forward(self, tokens: Tensor, mask: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = self.policy.transformer(tokens, attention_mask=mask, position_ids=positions)
        states = output.last_hidden_state[:, -new_tokens - 1 : -1]
        logits = self.policy.lm_head(states)
        logprobs = -cross_entropy(logits.transpose(1, 2), tokens[:, -new_tokens:], reduction="none")
        return logprobs, self.value(states).squeeze(-1)


def bare_iterations(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    new_tokens: int,
    epochs: int,
    learning_rate: float,
) -> Iterator[dict[str, float]]:
    """Yield the seconds of each iteration and of its three parts, for ever."""
    actor, frozen = ActorCritic(policy), ActorCritic(reference)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=learning_rate, fused=True)
    while True:
        started = time.perf_counter()
        inputs = tokenizer(prompts, padding=True, return_tensors="pt")
        tokens = policy.generate(**inputs, max_new_tokens=new_tokens, do_sample=True, top_k=0)
        answered = torch.ones(len(prompts), new_tokens, dtype=torch.long)
        mask = torch.cat([inputs["attention_mask"], answered], dim=1)
        generated = time.perf_counter()

        with torch.no_grad():
            old_logprobs, old_values = actor(tokens, mask, new_tokens)
            reference_logprobs, _ = frozen(tokens, mask, new_tokens)
        advantages = reference_logprobs - old_logprobs - old_values  # their values don't matter here
        returns = advantages + old_values
        scored = time.perf_counter()

        for _ in range(epochs):
            logprobs, values = actor(tokens, mask, new_tokens)
            ratio = (logprobs - old_logprobs).exp()
            clipped = ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE)
            policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            loss = policy_loss + VALUE_COEFFICIENT * 0.5 * (values - returns).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        updated = time.perf_counter()
        yield {
            "iteration": updated - started,
            "generate": generated - started,
            "score": scored - generated,
            "update": updated - scored,
        }
