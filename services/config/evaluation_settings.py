"""Settings under `evaluation.`: how held-out generations are sampled and judged."""

from typing import Final

from pydantic import Field, field_validator

from contracts.settings import Settings
from services.config.post_processing import find_post_processor

NEVER: Final = "never"  # value of evaluate_every
# Sampling keys that evaluation may override; all others are rollout's
DRAWN_AS = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "stop")


class EvaluationSettings(Settings):
    """Sampling of held-out generations. None takes the value of training."""

    num_prompts: int | None = Field(default=256, ge=1)  # first prompts of each split; None: all
    samples_per_prompt: int = Field(default=1, ge=1)  # responses to each prompt; above 1: pass@k and others
    pass_by: str = "reward"  # column of predictions that decides pass@k: reward, reward/LABEL, a metric
    pass_at: float | None = 1.0  # least value that passes; None: no pass@k and maj@k
    max_prompt_tokens: int | None = Field(default=None, ge=1)  # None: rollout.max_prompt_tokens
    max_tokens: int | None = Field(default=None, ge=1)  # None: rollout.max_tokens
    min_tokens: int | None = Field(default=None, ge=0)  # None: rollout.min_tokens
    temperature: float | None = Field(default=None, ge=0)  # 0: greedy; None: rollout.temperature
    top_k: int | None = Field(default=None, ge=0)  # 0: no limit; None: rollout.top_k
    top_p: float | None = Field(default=None, gt=0, le=1)  # None: rollout.top_p
    repetition_penalty: float | None = Field(default=None, gt=0)  # None: rollout.repetition_penalty
    num_beams: int = Field(default=1, ge=1)  # above 1: beam search, which needs temperature=0
    length_penalty: float = Field(default=1.0, ge=0)  # exponent for beams: higher values favor longer answers
    masked: bool = False  # NLPO: sample within the mask, as rollouts do; the exported model has no mask
    post_processor: str | None = None  # function applied to a text before grading; None: none
    # Stride in tokens between windows for the references' perplexity under the policy; None: not computed
    perplexity_stride: int | None = Field(default=None, ge=1)
    perplexity_meta: str | None = None  # key of prompts' meta data with the texts; None: the references

    @field_validator("post_processor")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        find_post_processor(name)
        return name
