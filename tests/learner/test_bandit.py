"""PPO learns: games small enough to be won in seconds."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from contracts.rollout import Rollout
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.tiny import AS_PAID, make_learner, rollout

PROMPT = (3, 4)
QUICK = PPO(learning_rate=3e-3, num_epochs=4, minibatch_size=32, kl=KLSettings(coefficient=0.0))


@torch.no_grad()
def play(learner: Learner, num: int, length: int, reward: Callable[[Sequence[int]], float]) -> list[Rollout]:
    """Answers drawn from the current policy, token by token."""
    tokens = torch.tensor([PROMPT] * num)
    logprobs = torch.zeros(num, 0)
    for _ in range(length):
        log_pi = learner.pair.lm(tokens).logits[:, -1].log_softmax(-1)
        chosen = log_pi.exp().multinomial(1)
        tokens = torch.cat([tokens, chosen], -1)
        logprobs = torch.cat([logprobs, log_pi.gather(-1, chosen)], -1)
    answers = tokens[:, len(PROMPT) :].tolist()
    return [
        rollout(i, PROMPT, answer, reward(answer), logprobs=old, version=learner.version)
        for i, (answer, old) in enumerate(zip(answers, logprobs.tolist(), strict=True))
    ]


@torch.no_grad()
def probability(learner: Learner, token: int) -> float:
    return float(learner.pair.lm(torch.tensor([PROMPT])).logits[0, -1].softmax(-1)[token])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_rewarded_token_becomes_almost_certain(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models[name], QUICK)
    token = 7
    assert probability(learner, token) < 0.2
    for _ in range(40):
        metrics = learner.update(play(learner, 64, 1, lambda answer: float(answer == [token])))
        assert metrics["mismatch/max_ratio"] < 1 + 1e-4  # on policy: who samples and who learns agree
        if probability(learner, token) > 0.9:
            break
    assert probability(learner, token) > 0.9


def test_credit_reaches_the_first_of_three_tokens(models: dict[str, Path]) -> None:
    """The reward stands at the last token and depends on the first alone."""
    learner = make_learner(models["llama"], QUICK, value_trunk="separate")
    for _ in range(60):
        learner.update(play(learner, 64, 3, lambda answer: float(answer[0] % 4 == 1)))
        if sum(probability(learner, token) for token in range(1, 37, 4)) > 0.9:
            break
    assert sum(probability(learner, token) for token in range(1, 37, 4)) > 0.9


def test_a_penalty_holds_the_policy_near_its_reference(models: dict[str, Path]) -> None:
    moved = []
    for coefficient in (0.0, 1.0):
        learner = make_learner(
            models["llama"], QUICK.model_copy(update={"kl": KLSettings(coefficient=coefficient), **AS_PAID})
        )
        for _ in range(15):
            metrics = learner.update(play(learner, 64, 1, lambda answer: float(answer[0] < 18)))
        moved.append(metrics["kl/mean"])
    free, held = moved
    assert held < free / 3
