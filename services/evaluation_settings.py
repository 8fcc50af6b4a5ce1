"""How held-out generations are made: what can be set under evaluation."""

from pydantic import Field, field_validator

from contracts.settings import Settings
from services.post_processing import find_post_processor

# What evaluation may set otherwise than rollout
DRAWN_AS = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "stop")


class EvaluationSettings(Settings):
    """How generations are sampled when they are evaluated; None: as in training."""

    num_prompts: int | None = Field(default=256, ge=1)  # the first of each split; None: all
    samples_per_prompt: int = Field(default=1, ge=1)
    max_prompt_tokens: int | None = Field(default=None, ge=1)  # None: rollout.max_prompt_tokens
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0)  # 0: greedy
    top_k: int | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    num_beams: int = Field(default=1, ge=1)  # more than one: beam search, with temperature=0
    length_penalty: float = Field(default=1.0, ge=0)  # of beams: the higher, the longer the answer
    # Above 1: tokens of the prompt and of the answer so far become less likely, as in Hugging Face's generate
    repetition_penalty: float = Field(default=1.0, gt=0)
    masked: bool = False  # NLPO: sample within the mask, as rollouts do; the exported model has none
    post_processor: str | None = None  # what is done to a text before it is judged; None: nothing
    # Perplexity of the references under the policy, in windows so many tokens apart; None: not computed
    perplexity_stride: int | None = Field(default=None, ge=1)
    perplexity_meta: str | None = None  # the key of prompts' meta data that has other texts than references

    @field_validator("post_processor")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        find_post_processor(name)
        return name
