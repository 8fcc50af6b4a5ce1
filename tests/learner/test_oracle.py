"""A whole PPO iteration against a second implementation: one rollout at a time, in plain words, no batching.

It shares no line with the learner but transformers' own forward pass.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.rollout import Rollout
from learner.algorithms.base import OptimizerSettings
from learner.algorithms.ppo import PPO
from learner.optimization.kl_control import KLSettings
from tests.learner.tiny import CRITIC_AS_PAID, make_learner, perturb, plain_logits, random_rollouts

# A large ε keeps AdamW from blowing gradients that are zero but for rounding up to whole steps.
PUBLISHED_AND_MORE = PPO(
    learning_rate=2e-3,
    critic_learning_rate=5e-3,
    num_epochs=3,
    minibatch_size=None,
    gamma=0.97,
    gae_lambda=0.9,
    value_clip_range=0.05,
    entropy_coef=0.02,
    max_grad_norm=0.3,
    optimizer=OptimizerSettings(weight_decay=0.05, eps=1e-4),
    kl=KLSettings(coefficient=0.1),
    **CRITIC_AS_PAID,
)


def values_of(lm: Any, value_head: nn.Linear, one: Rollout) -> Tensor:
    hidden = lm.base_model(input_ids=torch.tensor([one.tokens])).last_hidden_state[0]
    return torch.cat([value_head(hidden[t - 1]) for t, mine in enumerate(one.loss_mask) if mine])


def chosen(one: Rollout) -> Tensor:
    return torch.tensor([token for token, mine in zip(one.tokens, one.loss_mask, strict=True) if mine])


def old_numbers(
    lm: Any, reference: Any, value_head: nn.Linear, rollouts: list[Rollout], ppo: PPO
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(old log-probabilities, old values, advantages, returns) of each rollout."""
    numbers = []
    for one in rollouts:
        old = plain_logits(lm, one).log_softmax(-1)[torch.arange(one.num_generated), chosen(one)]
        ref = plain_logits(reference, one).log_softmax(-1)[torch.arange(one.num_generated), chosen(one)]
        rewards = -ppo.kl.coefficient * (old - ref)
        last = -1
        for turn in one.turns:  # each rewarded at its last token
            last += len(turn.tokens)
            rewards[last] += turn.reward or 0.0
        values = values_of(lm, value_head, one)
        advantages = torch.zeros(one.num_generated)
        for t in range(one.num_generated):
            for k in range(t, one.num_generated):
                following = values[k + 1] if k + 1 < one.num_generated else 0.0
                delta = rewards[k] + ppo.gamma * following - values[k]
                advantages[t] += (ppo.gamma * ppo.gae_lambda) ** (k - t) * delta
        numbers.append((old, values, advantages, advantages + values))
    return numbers


def iterate(lm: Any, value_head: nn.Linear, reference: Any, rollouts: list[Rollout], ppo: PPO) -> None:
    """Train `lm` and `value_head` in place."""
    assert ppo.value_clip_range and ppo.max_grad_norm
    with torch.no_grad():
        numbers = old_numbers(lm, reference, value_head, rollouts, ppo)
    pooled = torch.cat([advantages for _, _, advantages, _ in numbers])
    groups = [
        {
            "params": [p for p in module.parameters() if (p.ndim == 1) == vectors],
            "lr": lr,
            "weight_decay": 0.0 if vectors else ppo.optimizer.weight_decay,
        }
        for module, lr in ((lm, ppo.learning_rate), (value_head, ppo.critic_learning_rate))
        for vectors in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, eps=ppo.optimizer.eps)
    for _ in range(ppo.num_epochs):
        terms = []
        for one, (old, old_values, advantages, returns) in zip(rollouts, numbers, strict=True):
            logprobs = plain_logits(lm, one).log_softmax(-1)
            ratio = (logprobs[torch.arange(one.num_generated), chosen(one)] - old).exp()
            whitened = (advantages - pooled.mean()) / pooled.std()
            limits = (1 - ppo.clip_range, 1 + ppo.clip_range)
            surrogate = torch.min(ratio * whitened, ratio.clamp(*limits) * whitened)
            drift = values_of(lm, value_head, one) - old_values
            held = old_values + drift.clamp(-ppo.value_clip_range, ppo.value_clip_range)
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            terms.append(-surrogate + ppo.value_coef * (returns - held) ** 2 - ppo.entropy_coef * entropy)
        optimizer.zero_grad()
        torch.cat(terms).mean().backward()
        for module in (lm, value_head):
            nn.utils.clip_grad_norm_(module.parameters(), ppo.max_grad_norm)
        optimizer.step()


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied"])
def test_an_iteration_of_ppo_ends_at_the_oracles_weights(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models[name], PUBLISHED_AND_MORE, token_budget=40, logits_budget=300)
    nn.init.normal_(learner.pair.critic.head.weight, std=0.2)
    assert learner.reference is not None
    perturb(learner.pair.lm)  # away from the reference, so that there is a penalty
    lm, value_head, reference = (
        copy.deepcopy(module) for module in (learner.pair.lm, learner.pair.critic.head, learner.reference.lm)
    )
    started = copy.deepcopy(lm)
    rollouts = random_rollouts(8)
    iterate(lm, value_head, reference, rollouts, PUBLISHED_AND_MORE)
    metrics = learner.update(rollouts)
    assert metrics["clip_fraction"] > 0.1 and abs(metrics["kl/mean"]) > 0.01  # nothing was left untried
    moved = 0.0
    for before, expected, got in zip(
        started.parameters(), lm.parameters(), learner.pair.lm.parameters(), strict=True
    ):
        moved = max(moved, (expected - before).abs().max().item())
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert moved > 1e-3
    torch.testing.assert_close(
        dict(learner.pair.critic.head.named_parameters()),
        dict(value_head.named_parameters()),
        atol=1e-5,
        rtol=1e-5,
    )
