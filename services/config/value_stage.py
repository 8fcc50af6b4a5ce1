"""Settings of `whetstone annotate … value=true`, which learns each prompt's expected reward."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from learner.models.value_settings import ValueSettings
from services.config.post_processing import find_post_processor


class ValueStage(ValueSettings):
    """Training of the value head on sampled responses of the reference model.

    Example: `ValueStage(max_value=4.0, num_beams=2)`
    """

    num_prompts: int | None = Field(default=2000, ge=2)  # first prompts of the validation split; None: all
    samples_per_prompt: int = Field(default=1, ge=1)  # a prompt's target is their mean reward
    temperature: float = Field(default=0.0, ge=0)  # 0: greedy, so every sample is the same
    num_beams: int = Field(default=1, ge=1)  # above 1: beam search, with the transformers engine
    repetition_penalty: float = Field(default=1.0, gt=0)  # penalty, as evaluation.repetition_penalty
    post_processor: str | None = None  # applied before scoring, as evaluation.post_processor

    @field_validator("post_processor")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        find_post_processor(name)
        return name

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples_per_prompt > 1 and self.temperature == 0:
            raise ValueError(
                f"samples_per_prompt={self.samples_per_prompt} with temperature=0 makes the same response "
                "every time; expected a temperature above 0, such as 1"
            )
        if self.num_beams > 1 and self.temperature != 0:
            raise ValueError(
                f"num_beams={self.num_beams} is beam search, which does not sample: expected temperature=0 "
                f"with it, got {self.temperature:g}"
            )
        return self
