"""The longest prompt that a model reads, and the side on which a longer one is cut."""

from dataclasses import dataclass, field

from services.tasks.base import Side


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt, and the side on which a longer one is cut.

    Example: `PromptLimit(512, "right")` keeps the first 512 tokens of a prompt, special tokens included.
    """

    max_tokens: int | None = None  # None: prompts are never cut
    side: Side = "left"
    option: str = field(default="rollout.max_prompt_tokens", compare=False)  # that sets the limit

    def cuts(self, num_tokens: int) -> bool:
        """Return whether a prompt of `num_tokens` tokens is too long."""
        return self.max_tokens is not None and num_tokens > self.max_tokens

    @property
    def kept(self) -> str:
        """Return "first" or "last": the part of a long prompt that the model reads."""
        return "first" if self.side == "right" else "last"


UNCUT = PromptLimit()
