"""Texts of single tokens for people, with blanks, special tokens and characters of several tokens.

A token's text may depend on the previous token, so decode each one after the same other token.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from learner.settings import ModelSettings
from services.data.tokens.token_places import UNFINISHED, token_ends
from services.models.tokenizer import load_tokenizer

Piece = str | list[str]  # a special token is a list, ["<eos>"], so that no text can look like it


class TokenPieces:
    """Decoder of single tokens. It loads the tokenizer at its first use, and decodes each token once."""

    def __init__(self, model: ModelSettings) -> None:
        self._model = model
        self._known: dict[int, Piece] = {}

    def __call__(self, tokens: Sequence[int]) -> list[Piece]:
        """Return each token's text. The last token of a character has the character, the others have ""."""
        pieces = [self._piece(token) for token in tokens]
        start = 0
        while start < len(tokens):
            end = start
            while end < len(tokens) and UNFINISHED in pieces[end]:
                end += 1
            if end > start:
                pieces[start:end] = self._together(tokens[start:end])
            start = end + 1
        return pieces

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._model)

    @cached_property
    def _before(self) -> list[int]:
        before: list[int] = self._tokenizer.encode("a", add_special_tokens=False)[:1]
        return before

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def _piece(self, token: int) -> Piece:
        if token not in self._known:
            text = self._text([*self._before, token])[len(self._text(self._before)) :]
            self._known[token] = [text] if token in self._tokenizer.all_special_ids else text
        return self._known[token]

    def _together(self, tokens: Sequence[int]) -> list[Piece]:
        ends, text = token_ends(tokens, self._text), self._text(tokens)
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
