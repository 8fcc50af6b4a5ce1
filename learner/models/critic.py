"""Critics: value heads on a trunk's hidden states; a user's critic is `package.module:Class`."""

from typing import Protocol

import torch
from torch import Tensor, nn

from learner.batches.batching import MicroBatch
from learner.functional.advantages import ROUNDING
from learner.models.policy import Policy
from learner.models.shared_trunk import copy_sharing_frozen


class Critic(Protocol):
    """Torch module made from the policy; its parameters are separate from the policy's."""

    def __call__(self, policy: Policy, micro: MicroBatch, hidden_NH: Tensor) -> Tensor:
        """Return the values (N,) of the states before each generated token.

        Args:
            hidden_NH: the policy's hidden states before these tokens.
        """
        ...


class LinearCritic(nn.Module):
    """Linear head on the policy's trunk, or on a separate trunk."""

    def __init__(self, policy: Policy, separate_trunk: bool) -> None:
        super().__init__()
        self.trunk = copy_sharing_frozen(policy.trunk) if separate_trunk else None
        self.head = self._make_head(policy.lm.get_output_embeddings().weight.shape[1])
        *_, last = (layer for layer in self.head.modules() if isinstance(layer, nn.Linear))
        # Every state begins with value 0, so the first advantages are the rewards.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def _make_head(self, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    def forward(self, policy: Policy, micro: MicroBatch, hidden_NH: Tensor) -> Tensor:
        if self.trunk is not None:
            hidden_NH = policy.states(micro, self.trunk)
        # bfloat16 has three digits, and advantages are differences of values
        with torch.autocast(hidden_NH.device.type, enabled=False):
            values_N: Tensor = self.head(hidden_NH.float()).squeeze(-1)
        return values_N


class MLPCritic(LinearCritic):
    """Head of two layers; the hidden layer is twice the model's width, as in trlx and trl-textworld."""

    def _make_head(self, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))


CRITICS = {"linear": "learner.models.critic:LinearCritic", "mlp": "learner.models.critic:MLPCritic"}


LEAST_SQUARE = 1e-24  # values smaller than 1e-12 count as 0


class RunningNorm(nn.Module):
    """Debiased mean and deviation of all returns so far.

    A critic that predicts in these units keeps its scale while rewards change scale (van Hasselt et al. 2016,
    arXiv 1602.07714, without the rescaling).
    """

    mean: Tensor
    square: Tensor
    weight: Tensor

    def __init__(self, decay: float = 0.99999) -> None:
        super().__init__()
        self.decay = decay
        for name in ("mean", "square", "weight"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self._before: tuple[Tensor, Tensor] | None = None  # the moments before the last update

    @torch.no_grad()
    def update(self, returns_N: Tensor) -> None:
        """Add one batch's returns; each batch so far has nearly the same weight."""
        self._before = self._moments()
        keep = self.decay ** returns_N.numel()
        values_N = returns_N.double()
        self.mean.mul_(keep).add_((1 - keep) * values_N.mean())
        self.square.mul_(keep).add_((1 - keep) * values_N.square().mean())
        self.weight.mul_(keep).add_(1 - keep)

    def _moments(self) -> tuple[Tensor, Tensor]:
        is_new = self.weight == 0  # a branch would wait for the number
        weight = self.weight.masked_fill(is_new, 1.0)
        mean, square = self.mean / weight, self.square / weight
        variance = square - mean.square()
        # Equal returns differ only by rounding, which is no unit. Divide them by their size.
        size = square.where(square > LEAST_SQUARE, 1.0)
        deviation = variance.where(variance > ROUNDING**2 * square, size).sqrt()
        return mean.masked_fill(is_new, 0.0), deviation.masked_fill(is_new, 1.0)

    @property
    def deviation(self) -> float:
        """Return the standard deviation of all values so far; if all are equal, their size or 1."""
        return float(self._moments()[1])

    def normalize(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments()
        return ((values - mean) / deviation).to(values.dtype)

    def as_predicted(self, values: Tensor) -> Tensor:
        """Convert values, of any shape, back to predictions, with the moments from before the last update.

        With the new moments a value would seem to move without a step, and could leave the clip's range.
        """
        mean, deviation = self._before or self._moments()
        return ((values - mean) / deviation).to(values.dtype)

    def denormalize(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments()
        return (values * deviation + mean).to(values.dtype)
