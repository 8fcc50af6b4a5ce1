"""The value of each state in which the model chose a token; a user's own critic is `package.module:Class`."""

from typing import Protocol

import torch
from torch import Tensor, nn

from learner.batching import MicroBatch
from learner.policy import Policy
from learner.shared_trunk import copy_sharing_frozen


class Critic(Protocol):
    """A torch module made from the policy; its own parameters, and only those, are the critic's."""

    def __call__(self, policy: Policy, micro: MicroBatch, hidden_NH: Tensor) -> Tensor:
        """Values (N,) of the states that `hidden_NH` are the policy's hidden states of."""
        ...


class LinearCritic(nn.Module):
    """A linear head on the policy's trunk, or on a trunk of its own."""

    def __init__(self, policy: Policy, separate_trunk: bool) -> None:
        super().__init__()
        self.trunk = copy_sharing_frozen(policy.trunk) if separate_trunk else None
        self.head = self._make_head(policy.lm.get_output_embeddings().weight.shape[1])
        last = self.head if isinstance(self.head, nn.Linear) else self.head[-1]
        # Every state begins with value 0, so the first advantages are the rewards themselves.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def _make_head(self, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    def forward(self, policy: Policy, micro: MicroBatch, hidden_NH: Tensor) -> Tensor:
        if self.trunk is not None:
            hidden_NH = policy.states(micro, self.trunk)
        values: Tensor = self.head(hidden_NH).squeeze(-1).float()
        return values


class MLPCritic(LinearCritic):
    """Two layers, the hidden one twice the model's width, as trlx and trl-textworld have it."""

    def _make_head(self, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))


CRITICS = {"linear": "learner.critic:LinearCritic", "mlp": "learner.critic:MLPCritic"}


class RunningNorm(nn.Module):
    """Mean and deviation of all returns so far, debiased: a critic that predicts in their units keeps
    its scale while rewards change theirs (van Hasselt et al. 2016, arXiv 1602.07714, without the rescaling).
    """

    def __init__(self, decay: float = 0.99999) -> None:
        super().__init__()
        self.decay = decay
        for name in ("mean", "square", "weight"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self._before: tuple[Tensor, Tensor] | None = None  # the moments until the last update

    @torch.no_grad()
    def update(self, returns_N: Tensor) -> None:
        """Take in one batch; each of its returns counts the same as each of any other batch's, nearly."""
        self._before = self._moments()
        keep = self.decay ** returns_N.numel()
        values_N = returns_N.double()
        self.mean.mul_(keep).add_((1 - keep) * values_N.mean())
        self.square.mul_(keep).add_((1 - keep) * values_N.square().mean())
        self.weight.mul_(keep).add_(1 - keep)

    def _moments(self) -> tuple[Tensor, Tensor]:
        if self.weight == 0:
            return torch.zeros_like(self.mean), torch.ones_like(self.mean)
        mean = self.mean / self.weight
        return mean, (self.square / self.weight - mean.square()).clamp(min=1e-2).sqrt()

    def normalize(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments()
        return ((values - mean) / deviation).to(values.dtype)

    def as_predicted(self, values: Tensor) -> Tensor:
        """What the critic said where these values were made of it before the last update.

        Held against the new moments a value would have moved without a step, out of a clip's range.
        """
        mean, deviation = self._before or self._moments()
        return ((values - mean) / deviation).to(values.dtype)

    def denormalize(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments()
        return (values * deviation + mean).to(values.dtype)
