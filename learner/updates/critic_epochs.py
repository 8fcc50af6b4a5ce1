"""Train the critic in separate epochs, if the policy's step leaves it unchanged (TRPO)."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import Credit
from learner.batches.batching import MicroBatch
from learner.batches.fetching import fetched
from learner.optimization.optimizer import clip_gradients
from learner.updates.context import UpdateContext


def fit_critic(
    context: UpdateContext,
    algorithm: ActorCriticAlgorithm,
    credit: Credit,
    micro_batches: Callable[[Tensor], Iterable[MicroBatch]],
) -> dict[str, float]:
    """Minimise the value loss, a mean over tokens, in epochs of minibatches.

    The policy and a shared trunk do not change.
    """
    batch = context.batch
    loss, norms, steps = torch.zeros((), dtype=torch.float64, device=batch.device), 0.0, 0
    values_B = batch.counts_B
    if credit.value_mask_BT is not None:
        values_B = credit.value_mask_BT.sum(-1).cpu()
    for epoch in range(algorithm.num_epochs):
        for rows_B in context.minibatches(epoch):
            context.optimizer.zero_grad(set_to_none=True)  # the optimiser skips parameters without a gradient
            num_values = int(values_B.numpy()[rows_B.numpy()].sum())
            for micro in micro_batches(rows_B):
                value = _value_errors(context, algorithm, micro, credit).sum() / num_values
                (micro.weight * algorithm.value_coef * value).backward()
                loss = loss + micro.weight * value.detach().double()
            context.ranks.sum(*_gradients(context))
            norms += clip_gradients(context.models.pair, algorithm.max_grad_norm).critic
            context.optimizer.step()
            steps += 1
    return {
        "loss/value": context.ranks.total(fetched({"loss": loss}))["loss"] / steps,
        "gradient_norm/critic": norms / steps,
        "update/steps": float(steps),
        "update/epochs": float(algorithm.num_epochs),
        "update/stopped_early": 0.0,
    }


def _gradients(context: UpdateContext) -> list[Tensor]:
    parameters = [parameter for _, parameter in context.models.pair.critic_parameters()]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _value_errors(
    context: UpdateContext, algorithm: ActorCriticAlgorithm, micro: MicroBatch, credit: Credit
) -> Tensor:
    policy = context.models.pair.policy
    old_values_N, returns_N = context.value_targets(micro, credit)
    with context.precision.autocast():
        with torch.no_grad():  # a shared trunk gets no gradient, either
            hidden_NH = policy.states(micro)
        values_N = context.models.pair.critic(policy, micro, hidden_NH)
    errors_N = algorithm.value_error(values_N, old_values_N, returns_N)
    trains_N = context.value_mask(micro, credit)
    return errors_N if trains_N is None else errors_N * trains_N
