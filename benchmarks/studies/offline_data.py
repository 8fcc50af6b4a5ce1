"""A data set with a known best policy, and a reference's log-probabilities and values.

A prompt is "easy" or "hard" and four digits; a perfect answer is each digit's successor. A mostly right writer
gives a third of the answers. A writer who mostly copies the prompt gives the rest:

    reward = ½ for an easy prompt + ½ · (share of the digits that are right)

The best policy earns 0.75 on average. Every answer to an easy prompt has a high reward, so an algorithm that
weights answers by their rewards learns too little from hard prompts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.batches.batching import collate
from learner.batches.splitting import micro_batches
from learner.models.actor_critic import ActorCritic, load_actor_critic
from learner.models.value_estimator import predict, train_value
from learner.models.value_settings import ValueSettings
from learner.settings import ModelSettings

WORDS = ("<pad>", "<end>", "easy", "hard", *(str(digit) for digit in range(10)))
END, EASY, HARD, ZERO = 1, 2, 3, 4
NUM_DIGITS = 4
BEST = 0.75  # half of the prompts are easy
GOOD_WRITERS, RIGHT, WRONG = 1 / 3, 0.9, 0.1  # their share, and how often each writer's digit is right
NUM_ROWS, NUM_VALUE_PROMPTS, NUM_TEST, SAMPLES = 16384, 512, 1024, 4


def make_data() -> list[Rollout]:
    generator = np.random.default_rng(0)
    prompts = prompts_of(NUM_ROWS, generator)
    texts = written(prompts, generator)
    rewards = rewards_of(prompts, texts).tolist()
    return [as_rollout(i, *columns) for i, columns in enumerate(zip(prompts, texts, rewards, strict=True))]


def prompts_of(num: int, generator: np.random.Generator) -> np.ndarray:
    """Draw prompts of shape (num, 5)."""
    kinds = generator.integers(EASY, HARD + 1, (num, 1))
    return np.concatenate([kinds, ZERO + generator.integers(0, 10, (num, NUM_DIGITS))], axis=1)


def successors(prompts_PL: np.ndarray) -> np.ndarray:
    """Return the perfect answers (P, 4), without the end token."""
    return (prompts_PL[:, 1:] - ZERO + 1) % 10 + ZERO


def rewards_of(prompts_PL: np.ndarray, answers_PA: np.ndarray) -> np.ndarray:
    """Return the rewards (P,) of answers."""
    right = answers_PA[:, :NUM_DIGITS] == successors(prompts_PL)
    return 0.5 * (prompts_PL[:, 0] == EASY) + 0.5 * right.mean(axis=1)


def written(prompts_PL: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw an answer to each prompt (P, 5), with the end token."""
    skill = np.where(generator.random((len(prompts_PL), 1)) < GOOD_WRITERS, RIGHT, WRONG)
    is_right = generator.random((len(prompts_PL), NUM_DIGITS)) < skill
    digits = np.where(is_right, successors(prompts_PL), prompts_PL[:, 1:])
    return np.concatenate([digits, np.full((len(digits), 1), END)], axis=1)


def corrupted(rewards_M: np.ndarray, seed: int) -> np.ndarray:
    """Return the rewards with half of them shuffled among their rows."""
    generator = np.random.default_rng([seed, 1])
    places = generator.permutation(len(rewards_M))[: len(rewards_M) // 2]
    changed_M = rewards_M.copy()
    changed_M[places] = rewards_M[generator.permutation(places)]
    return changed_M


def as_rollout(index: int, prompt: np.ndarray, answer: np.ndarray, reward: float) -> Rollout:
    tokens, zeros = tuple(answer.tolist()), (0.0,) * len(answer)
    turn = Turn(tuple(prompt.tolist()), tokens, "", zeros, (0,) * len(answer), reward)
    return Rollout(index, index, Prompt(str(index), ""), (turn,), FinishReason.STOP)


def with_rewards(data: Sequence[Rollout], rewards_M: np.ndarray) -> list[Rollout]:
    pairs = zip(data, rewards_M.tolist(), strict=True)
    return [replace(row, turns=(replace(row.turns[0], reward=reward),)) for row, reward in pairs]


def known_of(data: Sequence[Rollout]) -> tuple[np.ndarray, np.ndarray]:
    """Return the data's rewards and baselines."""
    values = [np.nan if row.baseline is None else row.baseline for row in data]
    return np.array([row.total_reward for row in data]), np.array(values)


def annotated(data: Sequence[Rollout], model: Path) -> tuple[list[Rollout], ActorCritic, float]:
    """Annotate the data with the reference's log-probabilities and values.

    The third result is the share of the variance between prompts' mean rewards that the values explain.
    """
    pair = load_actor_critic(ModelSettings(path=str(model)), 2**24, torch.device("cpu")).eval()
    batch = collate(data)
    logprobs_BT = torch.zeros_like(batch.rewards_BT)
    with torch.no_grad():
        for micro in micro_batches(batch, torch.arange(batch.num_rollouts), 16384):
            micro.place(logprobs_BT, pair.policy(micro))
    values_B, explained = reference_values(pair, batch.tokens_SL[:, : NUM_DIGITS + 1])
    known = zip(data, logprobs_BT.tolist(), values_B.tolist(), strict=True)
    made = [
        replace(
            row,
            turns=(replace(row.turns[0], behavior_logprobs=tuple(logprobs[: row.num_generated])),),
            baseline=value,
        )
        for row, logprobs, value in known
    ]
    return made, pair, explained


def reference_values(pair: ActorCritic, prompts_BL: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the prompts' values, by a head trained on rewards of the reference's answers."""
    own_PL = prompts_of(NUM_VALUE_PROMPTS, np.random.default_rng(100))
    rewards_SP = [rewards_of(own_PL, answers(pair.lm, own_PL, seed)) for seed in range(SAMPLES)]
    targets_P = torch.tensor(np.mean(rewards_SP, axis=0))
    settings = ValueSettings(learning_rate=1e-3, num_epochs=20)
    trained = train_value(list(states(pair, torch.tensor(own_PL))), targets_P, settings)
    explained = 1 - trained.best.held_out / trained.constant_error
    return predict(trained.head, list(states(pair, prompts_BL)), 256), explained


@torch.no_grad()
def states(pair: ActorCritic, prompts_PL: torch.Tensor) -> torch.Tensor:
    """Return the hidden states (P, L, H)."""
    states_PLH: torch.Tensor = pair.policy.trunk(input_ids=prompts_PL, use_cache=False).last_hidden_state
    return states_PLH


@torch.no_grad()
def answers(lm: Any, prompts_PL: np.ndarray, seed: int | None) -> np.ndarray:
    """Return the model's answers (P, 4), sampled with a seed, greedy without one."""
    torch.manual_seed(seed or 0)
    tokens_PL = torch.tensor(prompts_PL)
    tokens = lm.generate(
        input_ids=tokens_PL,
        attention_mask=torch.ones_like(tokens_PL),
        do_sample=seed is not None,
        max_new_tokens=NUM_DIGITS,
        min_new_tokens=NUM_DIGITS,  # no earlier end: all have the same length
        top_k=None,
        pad_token_id=0,
    )
    return np.asarray(tokens[:, prompts_PL.shape[1] :])


def mean_reward(lm: Any, *, sampled: bool) -> float:
    """Return the mean reward on unseen prompts; prompts and random numbers are the same for every run."""
    prompts = prompts_of(NUM_TEST, np.random.default_rng(200))
    seeds: Sequence[int | None] = range(SAMPLES) if sampled else (None,)
    return statistics.fmean(float(rewards_of(prompts, answers(lm, prompts, seed)).mean()) for seed in seeds)
