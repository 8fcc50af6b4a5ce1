"""Supervised fine-tuning on references: the log-likelihood of the response and its end-of-sequence token."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from learner.algorithms.base import LearnsFrom
from learner.algorithms.imitation import Imitation


class Supervised(Imitation):
    learns_from: ClassVar[LearnsFrom] = "references"

    # text: prompt tokens count, too, and no end is taught, as RL4LMs has it for causal models
    loss_on: Literal["response", "text"] = "response"

    @model_validator(mode="after")
    def _no_reference(self) -> Supervised:
        if self.kl.coefficient or self.kl.target:
            raise ValueError(
                f"got kl.coefficient={self.kl.coefficient} and kl.target={self.kl.target}; supervised "
                "fine-tuning has no reference to stay near: expected kl.coefficient=0 and no target"
            )
        return self

    @property
    def online(self) -> bool:
        return False
