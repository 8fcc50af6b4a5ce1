"""A user's policy with a parameter of its own."""

import torch
from torch import nn

from learner.models.policy import CausalPolicy


class OwnScale(CausalPolicy):
    def __init__(self, lm: nn.Module, logits_budget: int) -> None:
        super().__init__(lm, logits_budget)
        self.scale = nn.Parameter(torch.ones(()))
