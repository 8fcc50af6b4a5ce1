"""The text of generated tokens: without special tokens, except the marks of thoughts.

Some models mark thoughts with special tokens: `[THINK]`, `<|inner_prefix|>`, gpt-oss's channels. A reward
must see them, or it mistakes the thought for the answer.
"""

from collections.abc import Sequence
from typing import Any

from contracts.conversations.thoughts import MARK

CHANNEL = "<|channel|>"
OF_CHANNELS = (CHANNEL, "<|message|>", "<|constrain|>", "<|start|>", "<|end|>")


class WrittenText:
    """Decoder of a tokenizer's generated tokens.

    Example: `WrittenText(tokenizer)(tokens)` is "[THINK]2 + 2[/THINK]4" if the marks are special tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {token: str(added_token) for token, added_token in added.items() if added_token.special}
        marks = OF_CHANNELS if CHANNEL in special.values() else ()
        kept = {token for token, text in special.items() if MARK.fullmatch(text) or text in marks}
        self._left_out = set(special) - kept if kept else None

    @property
    def keeps_marks(self) -> bool:
        """Return whether marks of thoughts are among the tokenizer's special tokens."""
        return self._left_out is not None

    def __call__(self, tokens: Sequence[int]) -> str:
        if self._left_out is None:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
        kept = [token for token in tokens if token not in self._left_out]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))
