"""Penalty for long texts: 0 up to a length, falling to -1 at the most tokens that a text may have."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr, model_validator

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings


class Overlong(Settings):
    """DAPO's soft overlong punishment: a part of a sum, beside the reward for being right.

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025, 2503.14476), eq. 13.
    In a run the tokens are those that the model generated; elsewhere `tokenizer` counts them.
    """

    deterministic: ClassVar[bool] = False  # not determined by the text alone

    max_tokens: int = Field(ge=1)  # -1 from here on: L_max
    buffer: int = Field(ge=1)  # the last tokens before it, in which the penalty grows: L_cache
    tokenizer: str | None = None  # a folder or a hub name, for texts without a count
    _counter: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _fits(self) -> "Overlong":
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer={self.buffer} is above max_tokens={self.max_tokens}")
        return self

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [penalty(self._count(sample), self.max_tokens, self.buffer) for sample in samples]

    def _count(self, sample: Sample) -> int:
        if sample.num_tokens is not None:
            return sample.num_tokens
        if self.tokenizer is None:
            raise InputError(
                "overlong counts tokens, and this text comes without its number: reward.tokenizer=FOLDER"
            )
        if self._counter is None:
            from transformers import AutoTokenizer  # takes seconds

            self._counter = AutoTokenizer.from_pretrained(self.tokenizer, trust_remote_code=False)
        return len(self._counter.encode(sample.text, add_special_tokens=False))


def penalty(num_tokens: int, max_tokens: int, buffer: int) -> float:
    """Return 0 up to max_tokens - buffer, -1 from max_tokens on, and a straight line between.

    >>> [penalty(count, max_tokens=100, buffer=20) for count in (10, 80, 85, 100, 300)]
    [0.0, 0.0, -0.25, -1.0, -1.0]
    """
    return max(-1.0, min(0.0, (max_tokens - buffer - num_tokens) / buffer))
