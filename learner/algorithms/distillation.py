"""On-policy distillation: approach a teacher's distribution over the next token, in the student's texts.

Agarwal et al. 2024 (GKD, arXiv 2306.13649) with all texts by the student; Lu 2025 ("On-Policy Distillation",
Thinking Machines Lab) for its reverse KL. The teacher is `model.reference.path`, with the divergence summed
over the whole vocabulary. Or the server at `teacher.url` scores the student's tokens. Rewards are only
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings, Traits
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.algorithms.remote_teacher import RemoteTeacher as RemoteTeacher
from learner.algorithms.traits import Divergence


class Distillation(Algorithm):
    # Imitation uses the whole softmaxes, however the texts were drawn.
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="plainly", imitates=True, teacher=True
    )

    learning_rate: float = Field(default=1e-5, gt=0)
    critic_learning_rate: None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=None, ge=1)  # rollouts; None: the whole batch
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: None = None  # a divergence has no old policy from which to drift
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    # reverse: KL(student‖teacher), which seeks a mode; forward: KL(teacher‖student), which covers all
    divergence: Literal["reverse", "forward"] = "reverse"
    teacher: RemoteTeacher | None = None  # None: the teacher is model.reference.path
    teachers: Mapping[str, RemoteTeacher] = {}  # a mixture's teachers by part; `teacher` has the other parts

    @model_validator(mode="after")
    def _estimates_are_reverse(self) -> Self:
        if self.teachers and self.teacher is None:
            raise ValueError("got teachers without teacher; expected teacher={url: …} for all other parts")
        servers = [teacher for teacher in (self.teacher, *self.teachers.values()) if teacher is not None]
        if self.divergence == "forward" and any(not teacher.top_k for teacher in servers):
            raise ValueError(
                "got divergence=forward with top_k=0; a drawn token's log-probability estimates KL(student‖"
                "teacher) alone: expected divergence=reverse, or teacher.top_k=20"
            )
        if len({teacher.top_k for teacher in servers}) > 1:
            raise ValueError("got teachers with different top_k; expected the same top_k of all")
        return self

    @property
    def asks_teacher(self) -> bool:
        return self.teacher is not None

    @property
    def teacher_divergence(self) -> Divergence:
        return self.divergence

    @property
    def kl(self) -> KLSettings:
        """Return the whole loss: a KL with coefficient 1, or no KL if the teacher is remote."""
        if self.asks_teacher:
            return KLSettings(placement="loss", coefficient=0.0, measure_every=0)
        estimator: Literal["full", "forward_full"] = (
            "full" if self.divergence == "reverse" else "forward_full"
        )
        return KLSettings(placement="loss", estimator=estimator, coefficient=1.0)

    def credit(self, inputs: CreditInputs) -> Credit:
        """Return a remote teacher's log p/π_old as advantages, if it has scored the rollouts."""
        gain_BT = inputs.rewards_BT if inputs.teacher_gain_BT is None else inputs.teacher_gain_BT
        return Credit(gain_BT, inputs.rewards_BT)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean divergence of a token, in nats, or a loss with the gradient of its estimate.

        The estimate is E[-ρ A] with A = log p/π_old. Its value estimates KL(π_old‖p).
        """
        if inputs.kl_N is not None:
            loss = inputs.kl_N.sum() / inputs.num_tokens
            return LossOutput(loss, {"loss/policy": loss.detach()})
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        weighted_N = ratio_N * inputs.advantages_N
        if inputs.importance_N is not None:
            weighted_N = weighted_N * inputs.importance_N
        loss = -weighted_N.sum() / inputs.num_tokens
        return LossOutput(loss, {"loss/policy": loss.detach()})
