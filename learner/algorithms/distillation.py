"""On-policy distillation: come to a teacher's distribution over the next token, in the student's own texts.

Agarwal et al. 2024 (GKD, arXiv 2306.13649) with all texts by the student; Lu 2025 ("On-Policy Distillation",
Thinking Machines Lab) for its reverse KL, which here is summed over the whole vocabulary. The teacher is
`model.reference.path`. Rewards are only measured.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings, Traits
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput


class Distillation(Algorithm):
    # It imitates: the divergence is that of the whole softmaxes, however the texts were drawn.
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="plainly", imitates=True, teacher=True
    )

    learning_rate: float = Field(default=1e-5, gt=0)
    critic_learning_rate: None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=None, ge=1)  # rollouts; None: the whole batch
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: None = None  # a divergence has no old policy to drift from
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    # reverse: KL(student‖teacher), which seeks a mode; forward: KL(teacher‖student), which covers all
    divergence: Literal["reverse", "forward"] = "reverse"

    @property
    def kl(self) -> KLSettings:
        """Return the KL in the loss that is all of it, with coefficient 1."""
        estimator: Literal["full", "forward_full"] = (
            "full" if self.divergence == "reverse" else "forward_full"
        )
        return KLSettings(placement="loss", estimator=estimator, coefficient=1.0)

    def credit(self, inputs: CreditInputs) -> Credit:
        return Credit(inputs.rewards_BT, inputs.rewards_BT)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean divergence of a token, in nats."""
        assert inputs.kl_N is not None, "a teacher is loaded, and its KL is in the loss"
        loss = inputs.kl_N.sum() / inputs.num_tokens
        return LossOutput(loss, {"loss/policy": loss.detach()})
