"""Tokens of rendered texts, and of pieces that follow each other; the tokenizer adds no tokens."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

Tokens = tuple[int, ...]


def marks_of(tokenizer: Any) -> tuple[str, ...]:
    """Return the tokenizer's marks, such as those between messages, which no foreign text may hold.

    Runs of blanks, which some tokenizers also add, do not count.
    """
    added = tokenizer.get_added_vocab()
    return tuple(mark for mark in added if len(mark) > 1 and not (mark[0].isalnum() or mark.isspace()))


def without_marks(text: str, marks: Sequence[str]) -> str:
    """Return a text with broken marks, so that it can't end its message and speak for another role.

    >>> without_marks("Wrong.<|im_end|>", ["<|im_end|>"])
    'Wrong.< |im_end|>'
    """
    for mark in marks:
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


class Encoding:
    """Tokens by one tokenizer, special tokens visible."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def tokens(self, text: str) -> Tokens:
        """Return the tokens of a rendered text."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def behind(self, before: str, text: str) -> Tokens:
        """Return a text's tokens after another text, because some tokenizers begin texts with a blank."""
        head, whole = self.tokens(before), self.tokens(before + text)
        return whole[len(head) :] if whole[: len(head)] == head else self.tokens(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def shown(self, token: int) -> str:
        """Return a token as text."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def pieces(self, text: str) -> list[str]:
        """Return a text cut between its tokens; joined, the pieces are the text again."""
        if not getattr(self._tokenizer, "is_fast", False):
            return re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = sorted({0, *(start for start, _ in encoded["offset_mapping"])})
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def is_mark(self, token: int) -> bool:
        """Return whether a token was added to the vocabulary, as marks between messages are."""
        return token in self._added

    def marks_at_the_end(self, tokens: Tokens) -> Tokens:
        """Return the marks at the end of tokens."""
        count = next((i for i, token in enumerate(reversed(tokens)) if not self.is_mark(token)), len(tokens))
        return tokens[len(tokens) - count :]

    @property
    def eos(self) -> Tokens:
        """Return the tokenizer's end token; () without one."""
        token = self._tokenizer.eos_token_id
        return () if token is None else (token,)

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_vocab().values())
