"""Warning of a learning rate that is too low to move the model during a run."""

import math

from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings
from services.terminal.readable import number

# Adam moves each of P weights by at most the rate, so `steps` steps move a token's log-probability by about
# rate · steps · √P. The KL to the start is about 0.08 times its square, as measured with GRPO, 260,000
# weights and 40 steps (docs/results/studies.md): 0.004 at 1e-5 and 0.275 at 1e-4.
KL_OF_REACH = 0.08
LEAST_KL = 1e-3  # nats a token; below it, fewer than one token in a hundred changes
USUAL_KL = 0.3  # nats a token, in a run that learns
LARGE = 100_000_000  # weights of a model that the suggested rate would ruin


def rate_warnings(
    algorithm: Algorithm,
    model: ModelSettings,
    weights: int | None,
    *,
    rollouts: int,
    iterations: int,
    longest: int = 1,
) -> list[str]:
    """Warn if the learning rate is too low for this model and these iterations.

    Args:
        weights: number of the model's weights; None: unknown.
        rollouts: rollouts of an iteration.
        longest: most tokens of a rollout.
    """
    is_whole = not model.adapter.trains and model.trainable_layers is None
    steps_by_adam = algorithm.optimizer.name == "adamw" and algorithm.traits.update != "trust_region"
    if not (
        algorithm.traits.online and not algorithm.traits.teacher and steps_by_adam and weights and is_whole
    ):
        return []
    an_epoch = math.ceil(rollouts / algorithm.least_minibatch(rollouts, longest))
    steps = iterations * algorithm.num_epochs * an_epoch
    kl = kl_after(algorithm.learning_rate, steps, weights)
    if kl >= LEAST_KL:
        return []
    better = math.sqrt(USUAL_KL / KL_OF_REACH) / (steps * math.sqrt(weights))
    rate = (
        f"algorithm.learning_rate={better:.0e}, or more iterations="
        if weights < LARGE
        else "more iterations="
    )
    return [
        f"algorithm.learning_rate={algorithm.learning_rate:g} moves a model of {weights:,} weights by about "
        f"{number(kl)} nats a token in {steps} steps, and below {LEAST_KL:g} no reward changes; try {rate}"
    ]


def kl_after(rate: float, steps: int, weights: int) -> float:
    """Estimate how far the steps can move a policy, in nats a token, by the rule above.

    >>> round(kl_after(1e-5, 40, 260_000), 4)
    0.0033
    """
    return KL_OF_REACH * (rate * steps) ** 2 * weights
