"""Inputs of credit and losses, from short lists."""

from collections.abc import Sequence
from typing import Any

import torch

from learner.algorithms.base import CreditInputs, LossInputs


def loss_inputs(rows: Sequence[int], **fields: Any) -> LossInputs:
    """One token an entry of `rows`, the response it belongs to; by default ratios are 1 and all else is 0.

    Example: `loss_inputs([0, 0, 1], advantages_N=[1.0, 1.0, -1.0])`
    """
    rows_N = torch.tensor(rows)
    zeros_N = torch.zeros(len(rows))
    names = ("logprobs_N", "old_logprobs_N", "advantages_N", "returns_N", "values_N", "old_values_N")
    inputs: dict[str, Any] = dict.fromkeys(names, zeros_N) | {
        "entropies_N": None,
        "kl_N": None,
        "rows_N": rows_N,
        "lengths_N": rows_N.bincount()[rows_N],
        "num_tokens": len(rows),
        "num_rollouts": len(set(rows)),
        "max_tokens": 10,
    }
    tensors = {
        name: torch.tensor(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return LossInputs(**(inputs | tensors))


def credit_inputs(
    rewards: Sequence[Sequence[float]],
    groups: Sequence[int] = (),
    kl: Sequence[Sequence[float]] = (),
    values: Sequence[Sequence[float]] = (),
    kl_coefficient: float = 0.0,
    turns: Sequence[Sequence[int]] = (),
    bootstrap: Sequence[float] = (),
    baseline: Sequence[float] = (),
) -> CreditInputs:
    """Rows of any length, a number for each token: `credit_inputs([[0, 1], [3]])` has two rollouts.

    Args:
        turns: how many tokens each turn has: `[[1, 1], [1]]`; by default each rollout is one turn.
    """
    width = max(map(len, rewards))
    lengths = turns or [[len(row)] for row in rewards]

    def padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor([[*map(float, row), *[0.0] * (width - len(row))] for row in rows])

    rewards_BT = padded(rewards)
    zeros_BT = torch.zeros_like(rewards_BT)
    return CreditInputs(
        rewards_BT=rewards_BT,
        kl_BT=padded(kl) if kl else zeros_BT,
        values_BT=padded(values) if values else zeros_BT,
        mask_BT=padded([[1.0] * len(row) for row in rewards]).bool(),
        positions_BT=padded([[i for n in row for i in range(n)] for row in lengths]).long(),
        groups_B=torch.tensor(groups or range(len(rewards))),
        bootstrap_B=torch.tensor([float(value) for value in bootstrap or [0.0] * len(rewards)]),
        baseline_B=torch.tensor([float(value) for value in baseline or [0.0] * len(rewards)]),
        kl_coefficient=kl_coefficient,
    )
