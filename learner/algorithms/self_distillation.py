"""Self-distillation: approach the policy's own distribution after it reads a comment or a better answer.

The teacher is the policy itself after a longer prompt. Hübotter et al. 2026 (SDPO, arXiv 2601.20802) use the
average of all weights so far. Others: Shenfeld et al. 2026 (SDFT, arXiv 2601.19897); Zhao et al. 2026 (OPSD,
arXiv 2601.18734) with the first weights. `weight` mixes GRPO in. `rollout.group_size` is 8 unless given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from learner.algorithms.base import CreditInputs, KLSettings, LossInputs, OwnTeacher, Traits
from learner.algorithms.critic_free import CriticFree
from learner.algorithms.traits import Divergence
from learner.functional.aggregation import Aggregation

if TYPE_CHECKING:
    from torch import Tensor

PROMPT, ANSWER, COMMENT = "{prompt}", "{answer}", "{comment}"


class SelfDistillation(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    aggregation: Aggregation = "sequence_mean"
    scale_by_deviation: bool = True
    learning_rate: float = Field(default=1e-5, gt=0)
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=0)
    weight: float = Field(default=1.0, gt=0, le=1)  # the distillation's part; GRPO's surrogate has the rest
    teacher: Literal["live", "average", "first"] = "average"
    teacher_rate: float = Field(default=0.05, gt=0, le=1)  # average: share of the newest weights
    # reverse: KL(student‖teacher); forward: KL(teacher‖student); jsd: to the mean of both, half and half
    divergence: Divergence = "reverse"
    reads: Literal["comment", "answer", "both"] = "both"
    # Least reward of another response to the prompt that the teacher may read; None: more than the student's
    answer_from: float | None = None
    max_teacher_tokens: int | None = Field(default=None, ge=1)  # teacher's prompt; None: the window's rest
    # The teacher's text instead of the prompt, or instead of a conversation's last user message; a part
    # without content is left out
    template: str = "{prompt}{answer}{comment}\n\nCorrectly solve the original question.\n"
    answer_template: str = "\n\nCorrect solution:\n\n{answer}\n"
    comment_template: str = (
        "\n\nThe following is feedback from your unsuccessful earlier attempt:\n\n{comment}\n"
    )

    @model_validator(mode="after")
    def _templates_have_their_places(self) -> Self:
        places = {"template": PROMPT, "answer_template": ANSWER, "comment_template": COMMENT}
        for name, place in places.items():
            if place not in (text := getattr(self, name)):
                raise ValueError(f"got {name}={text!r}, which must contain {place}")
        return self

    @property
    def own_teacher(self) -> OwnTeacher:
        return OwnTeacher(self.teacher, self.teacher_rate, self.divergence, self.weight)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=self.scale_by_deviation)

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Return weight · Σ w D + (1 - weight) · GRPO's loss, with D the divergence from the teacher."""
        distilled = self.weight * _distilled(inputs, weights_N)
        if self.weight == 1:
            return distilled
        return distilled + (1 - self.weight) * super().surrogate(inputs, weights_N)

    def parts(self, inputs: LossInputs, weights_N: Tensor) -> dict[str, Tensor]:
        return {"loss/distillation": _distilled(inputs, weights_N).detach()}


def _distilled(inputs: LossInputs, weights_N: Tensor) -> Tensor:
    assert inputs.taught_N is not None, "an algorithm that is its own teacher gets divergences"
    return (weights_N * inputs.taught_N).sum()
