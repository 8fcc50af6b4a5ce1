"""Synthetic curves: a sound run, and the same one with a pathology in some columns."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from services.runs.diagnosis.history import History

Curve = Callable[[int], float | None]  # iteration → value

SETTINGS = {
    "algorithm.learning_rate": 1e-5,
    "algorithm.critic_learning_rate": None,
    "algorithm.num_epochs": 4,
    "algorithm.kl.coefficient": 0.02,
    "algorithm.entropy_coef": 0.0,
    "algorithm.reward_scale": 1.0,
    "algorithm.value_coef": 0.5,
    "rollout.max_tokens": 256,
    "rollout.min_tokens": 0,
    "rollout.max_prompt_tokens": 512,
    "rollout.group_size": 8,
    "learner.behavior": "exact",
}

EXACT = ("reward/min", "reward/max")  # bounds, which no noise passes

# A run that learns: reward from 0.2 to 0.7, KL and entropy settle, a critic that warms up.
SOUND: dict[str, Curve] = {
    "reward/mean": lambda i: 0.7 - 0.5 * math.exp(-i / 20),
    "reward/standard_error": lambda i: 0.01,
    "reward/std": lambda i: 0.3,
    "reward/min": lambda i: 0.0,
    "reward/max": lambda i: 1.0,
    "reward/length_correlation": lambda i: -0.1,
    "groups/constant": lambda i: 0.2,
    "kl/mean": lambda i: 0.3 * (1 - math.exp(-i / 30)),
    "entropy": lambda i: 0.5 + 1.5 * math.exp(-i / 20),
    "response_length/mean": lambda i: 90 + i / 4,
    "response_repetition/mean": lambda i: 0.03,
    "finish/stop": lambda i: 0.95,
    "prompts/cut": lambda i: 0.01,
    "clip_fraction": lambda i: 0.1,
    "approx_kl": lambda i: 0.02,
    "explained_variance": lambda i: 0.6 - 0.8 * math.exp(-i / 10),
    "mismatch/kl": lambda i: 0.0008,
    "staleness/mean": lambda i: 0.0,
    "staleness/max": lambda i: 0.0,
}


def run(
    curves: Mapping[str, Curve] | None = None,
    held_out: Curve | None = None,
    *,
    iterations: int = 80,
    noise: float = 0.02,
    seed: int = 0,
    settings: Mapping[str, Any] = SETTINGS,
) -> History:
    """Return a run's history: SOUND with `curves` in place of some columns.

    Args:
        held_out: validation's `rouge`, every ten iterations.
        noise: relative size of the noise on all but EXACT.
    """
    draw = random.Random(seed)
    columns = {**SOUND, **(curves or {})}
    rows = []
    for i in range(1, iterations + 1):
        row: dict[str, Any] = {"iteration": i}
        for key, curve in columns.items():
            value = curve(i)
            blur = 0.0 if key in EXACT else noise * draw.uniform(-1, 1)
            row[key] = None if value is None else value * (1 + blur)
        rows.append(row)
    measured = held_out or SOUND["reward/mean"]
    epochs = range(0, iterations + 1, 10)
    evaluations = [{"epoch": i, "metrics": {"lexical/rouge_rouge1": measured(i)}} for i in epochs]
    return History(rows, evaluations, settings)
