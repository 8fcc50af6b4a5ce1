"""How `whetstone annotate … value=true` learns what reward the reference earns with a prompt."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from learner.value_settings import ValueSettings
from services.post_processing import find_post_processor


class ValueStage(ValueSettings):
    """The head's training, and the reference's responses that it learns from.

    Example: `ValueStage(max_value=4.0, num_beams=2)`
    """

    num_prompts: int | None = Field(default=2000, ge=2)  # the first of the validation split; None: all
    samples_per_prompt: int = Field(default=1, ge=1)  # the value of a prompt is their mean reward
    temperature: float = Field(default=0.0, ge=0)  # 0: the likeliest response, which is always the same
    num_beams: int = Field(default=1, ge=1)  # more than one: beam search, by the transformers engine
    repetition_penalty: float = Field(default=1.0, gt=0)  # as of evaluation
    post_processor: str | None = None  # what is done to a response before it is scored, as of evaluation

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
                f"num_beams={self.num_beams} is beam search, which draws nothing: expected temperature=0 "
                f"with it, got {self.temperature:g}"
            )
        return self
