"""The most tokens of a prompt, and the side on which longer prompts are cut."""

from dataclasses import dataclass, field

from services.data.tasks.base import Side


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The most tokens of a prompt, and the side on which longer prompts are cut.

    Example: `PromptLimit(512, "right")` keeps the first 512 tokens of a prompt, including special tokens.
    """

    max_tokens: int | None = None  # None: prompts are never cut
    side: Side = "left"
    option: str = field(default="rollout.max_prompt_tokens", compare=False)  # option that sets the limit

    def cuts(self, num_tokens: int) -> bool:
        """Return whether a prompt of `num_tokens` tokens is too long."""
        return self.max_tokens is not None and num_tokens > self.max_tokens

    @property
    def kept(self) -> str:
        """Return "first" or "last": the part of a long prompt that the model reads."""
        return "first" if self.side == "right" else "last"


UNCUT = PromptLimit()
