"""Update by epochs of minibatches with a gradient step each, as most algorithms do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.errors import LearnerError
from learner.algorithms.base import Credit
from learner.batches.fetching import fetched
from learner.optimization.optimizer import GradientNorms, clip_gradients
from learner.updates.context import UpdateContext


class MinibatchUpdate:
    """Update by minibatches; gradients add up over micro-batches, so their split changes no loss."""

    def __init__(self, context: UpdateContext) -> None:
        self._context = context
        self._done, self._steps = 0, 0
        self._values_B: Tensor | None = None  # number of tokens of each rollout that train the critic

    def run(self, credit: Credit) -> dict[str, float]:
        context, algorithm, batch = self._context, self._context.algorithm, self._context.batch
        sums: dict[str, float] = {}
        steps, num_repeated, epochs = 0, 0, 0.0
        if context.scored.by_update and credit.trains_B is not None:
            raise LearnerError(
                f"{type(algorithm).__name__}.credit() returned trains_B, which leaves rollouts out; expected "
                "leaves_out_truncated=True of such an algorithm, so that all are scored before the update"
            )
        for epoch in range(algorithm.num_epochs):
            for rows_B in context.minibatches(epoch, credit.trains_B):
                shares = self._accumulate(credit, rows_B)
                if algorithm.target_kl and shares["approx_kl"] > 1.5 * algorithm.target_kl:
                    context.optimizer.zero_grad(set_to_none=True)
                    # show metrics even if the first minibatch stopped
                    return _metrics(sums if steps else shares, max(steps, 1), epochs, stopped=True) | {
                        "update/steps": float(steps),
                        **context.precision.metrics(num_repeated),
                    }
                while (norms := context.precision.step(context.optimizer, self._clip)) is None:
                    shares = self._accumulate(credit, rows_B)  # repeat it with a smaller loss scale
                    num_repeated += 1
                steps += 1
                self._steps = steps
                epochs += len(rows_B) / batch.num_rollouts
                shares |= {"gradient_norm/policy": norms.policy, "gradient_norm/critic": norms.critic}
                _add(sums, shares)
        return _metrics(sums, steps, epochs, stopped=False) | context.precision.metrics(num_repeated)

    def _clip(self) -> GradientNorms:
        return clip_gradients(self._context.models.pair, self._context.algorithm.max_grad_norm)

    def _accumulate(self, credit: Credit, rows_B: Tensor) -> dict[str, float]:
        """Accumulate the gradients of one minibatch; return its metrics."""
        context, batch = self._context, self._context.batch
        rows = rows_B.numpy()
        num_tokens = int(batch.counts_B.numpy()[rows].sum())
        num_values = int(self._num_values(credit).numpy()[rows].sum())
        credit = self._prepared(credit, rows_B)
        context.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for micro in context.micro_batches(rows_B):
            inputs = context.loss_inputs(
                micro,
                credit,
                num_tokens=num_tokens,
                num_rollouts=len(rows_B),
                num_values=num_values,
                records=context.scored.by_update and not self._steps,
            )
            output = context.algorithm.loss(inputs)
            context.precision.backward(micro.weight * output.loss)
            _add(sums, {name: micro.weight * share for name, share in output.metrics.items()})
            self._done += micro.num_sequences * context.ranks.size
            total = context.algorithm.num_epochs * batch.num_sequences
            context.advance(min(self._done, total), total)
        context.ranks.sum_gradients(context.models.pair.parameters())
        return context.ranks.total(fetched(sums))

    def _num_values(self, credit: Credit) -> Tensor:
        """Return how many tokens of each rollout train the critic, (B,), on the host."""
        if credit.value_mask_BT is None:
            return self._context.batch.counts_B
        if self._values_B is None:
            self._values_B = credit.value_mask_BT.sum(-1).cpu()
        return self._values_B

    def _prepared(self, credit: Credit, rows_B: Tensor) -> Credit:
        """Prepare the advantages over the whole minibatch, usually by whitening."""
        places = self._context.batch.places(rows_B.numpy())
        whole_BT = torch.zeros_like(credit.advantages_BT)
        whole_BT[places] = self._context.algorithm.prepare_minibatch(credit.advantages_BT[places])
        return replace(credit, advantages_BT=whole_BT)


def _add(sums: dict[str, Any], shares: Mapping[str, Any]) -> None:
    """Add shares to sums; a name that ends in /max keeps its largest value."""
    for name, share in shares.items():
        if name in sums:
            share = _larger(sums[name], share) if name.endswith("/max") else sums[name] + share
        sums[name] = share


def _larger(one: Any, other: Any) -> Any:
    if isinstance(one, Tensor) and isinstance(other, Tensor):  # `max` would wait for both numbers
        return one.maximum(other)
    return max(one, other)


def _metrics(sums: dict[str, float], steps: int, epochs: float, *, stopped: bool) -> dict[str, float]:
    means = {name: total if name.endswith("/max") else total / steps for name, total in sums.items()}
    return means | {
        "update/steps": float(steps),
        "update/epochs": epochs,
        "update/stopped_early": float(stopped),
    }
