"""Metrics that need the split's name or the model.

The evaluating process computes them, because its rollout workers hold the model; no replica serves them.
"""

from collections.abc import Sequence

from contracts.errors import InputError
from reward_servers.settings import Part
from reward_servers.user_rewards.own import wanted_of


def served_metrics(metrics: Sequence[Part]) -> tuple[Part, ...]:
    """Return the metrics that take only samples, which replicas can serve."""
    return tuple(part for part in metrics if not wanted_of(part.name))


def evaluated_metrics(metrics: Sequence[Part]) -> tuple[Part, ...]:
    """Return the metrics that the evaluating process computes."""
    return tuple(part for part in metrics if wanted_of(part.name))


def refuse_evaluated(metrics: Sequence[Part]) -> None:
    """Refuse metrics that need an evaluation.

    Raises:
        InputError: a metric does.
    """
    for part in evaluated_metrics(metrics):
        raise InputError(
            f"metric={part.name}: its compute() takes {' and '.join(wanted_of(part.name))}, which only the "
            f"evaluation of a model has; expected compute(samples). whetstone train and whetstone evaluate "
            f"compute it: metrics={part.name}"
        )
