"""Settings of a remote teacher for distillation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.settings import Settings


class RemoteTeacher(Settings):
    """A teacher on a vLLM server, which returns log-probabilities of the student's tokens.

    Example: `RemoteTeacher(url="http://127.0.0.1:8001/v1", model="big")`
    """

    url: str  # up to /v1
    model: str | None = None  # the server's name for it; None: the first that the server lists
    # tokens: student and teacher share one tokenizer. text: the teacher's tokenizer is at `tokenizer`, and
    #     spans that end together in both count
    align: Literal["tokens", "text"] = "tokens"
    tokenizer: str | None = None
    # Number of the teacher's likeliest tokens to compare at a place; 0: only the drawn token's
    # log-probability. vLLM gives at most its --max-logprobs, 20 by default
    top_k: int = Field(default=0, ge=0)
    key_variable: str | None = None  # environment variable with the server's key
    timeout_s: float = Field(default=60.0, gt=0)  # deadline of one call, in seconds
    patience_s: float = Field(default=600.0, gt=0)  # deadline of one text over all its calls, in seconds
    max_concurrent: int = Field(default=16, ge=1)  # calls at a time

    @model_validator(mode="after")
    def _texts_need_a_tokenizer(self) -> Self:
        if (self.align == "text") != (self.tokenizer is not None):
            raise ValueError(
                f"got align={self.align} with tokenizer={self.tokenizer}; expected align=text with the "
                "folder of the teacher's tokenizer, or neither"
            )
        if self.align == "text" and self.top_k:
            raise ValueError(
                f"got align=text with top_k={self.top_k}; another tokenizer has other tokens: expected "
                "top_k=0"
            )
        return self
