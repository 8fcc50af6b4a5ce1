"""Tokens of rendered texts, and of pieces that follow each other: the tokenizer adds none of its own."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

Tokens = tuple[int, ...]


class Encoding:
    """Tokens by one tokenizer, special tokens visible."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def tokens(self, text: str) -> Tokens:
        """Return the tokens of a rendered text."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def behind(self, before: str, text: str) -> Tokens:
        """Return a text's tokens behind another text: some tokenizers begin each text with a blank."""
        head, whole = self.tokens(before), self.tokens(before + text)
        return whole[len(head) :] if whole[: len(head)] == head else self.tokens(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def shown(self, token: int) -> str:
        """Return a token as text."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def pieces(self, text: str) -> list[str]:
        """Return a text cut between its tokens; together the pieces are the text again."""
        if not getattr(self._tokenizer, "is_fast", False):
            return re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = sorted({0, *(start for start, _ in found["offset_mapping"])})
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def is_mark(self, token: int) -> bool:
        """Return whether a token was added to the vocabulary, as those between messages are."""
        return token in self._added

    def marks_at_the_end(self, tokens: Tokens) -> Tokens:
        """Return the marks at the end of tokens."""
        count = next((i for i, token in enumerate(reversed(tokens)) if not self.is_mark(token)), len(tokens))
        return tokens[len(tokens) - count :]

    @property
    def eos(self) -> Tokens:
        """Return the tokenizer's end token; () where it has none."""
        found = self._tokenizer.eos_token_id
        return () if found is None else (found,)

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_vocab().values())
