"""Supervised fine-tuning on reference texts: the log-likelihood of the response and its end token."""

from __future__ import annotations

from typing import ClassVar

from learner.algorithms.base import LossOver, Traits
from learner.algorithms.imitation import Imitation


class Supervised(Imitation):
    traits: ClassVar[Traits] = Traits(learns_from="references", mixes_data="plainly", imitates=True)

    # text: prompt tokens count, too, and no end is taught, as in RL4LMs for causal models
    loss_on: LossOver = "response"

    @property
    def loss_over(self) -> LossOver:
        return self.loss_on
