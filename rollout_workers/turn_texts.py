"""Turn a conversation's texts into tokens, as plain texts in a row or by a tokenizer's chat template.

Every piece is tokenized once, alone, and pieces are joined as tokens. So a model's answer keeps the tokens
that the model drew.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from contracts.errors import InputError


class TurnTexts(Protocol):
    """Layout of a conversation in tokens."""

    def beginning(self, header: str) -> tuple[int, ...]:
        """Return the start of every context."""
        ...

    def observation(self, text: str) -> tuple[int, ...]:
        """Return an observation, up to where the model's answer begins."""
        ...

    def closing(self, answer: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens between an answer and the next observation; () where the answer has them."""
        ...

    def answer(self, text: str) -> tuple[int, ...]:
        """Return an answer as the model would generate it, its end included."""
        ...

    @property
    def ending(self) -> tuple[int, ...]:
        """Return the tokens that an encoder needs at a context's end; () for causal models."""
        ...


class PlainTexts:
    """Layout of plain texts. An answer begins with a blank, as a word in a sentence does.

    Example: with `reply_end="\\n"` a game reads "… You choose to" + " go east\\n" + "You are in …".
    """

    def __init__(self, tokenizer: Any, reply_end: str) -> None:
        self._tokenizer, self._reply_end = tokenizer, reply_end
        self._before, self.ending = special_tokens(tokenizer)
        self._reply_end_tokens = self.observation(reply_end)

    def beginning(self, header: str) -> tuple[int, ...]:
        return self._before + self.observation(header)

    def observation(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def closing(self, answer: Sequence[int]) -> tuple[int, ...]:
        written = self._tokenizer.decode(list(answer), skip_special_tokens=False)
        said = written.endswith(self._reply_end.strip() or self._reply_end)
        return () if said else self._reply_end_tokens

    def answer(self, text: str) -> tuple[int, ...]:
        tokens = self.observation(f" {text.strip()}") + self._reply_end_tokens
        if self._reply_end_tokens or self._tokenizer.eos_token_id is None:
            return tokens
        return (*tokens, self._tokenizer.eos_token_id)


class ChatTexts:
    """Layout by the tokenizer's chat template: observations are the user's messages, the header the system's.

    The template is read once, with placeholders. A template in which a message depends on later ones can't be
    cut into pieces and is refused.
    """

    ending: tuple[int, ...] = ()

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "environment.template=chat: the tokenizer has no chat template; set chat_template in "
                "tokenizer_config.json, or environment.template=plain"
            )
        self._tokenizer = tokenizer
        user, assistant = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
        talk = self._render([user, assistant], False)
        self._close = talk[talk.rindex("A") + 1 :]
        self._talk, self._turns = talk, [user, assistant]
        self._closing_tokens = self._encode(self._close)

    def beginning(self, header: str) -> tuple[int, ...]:
        system = [{"role": "system", "content": header}] if header else []
        whole = self._render([*system, {"role": "user", "content": "Q"}], True)
        unit = self._unit("Q")
        if not whole.endswith(unit):
            raise self._refusal()
        return self._encode(whole.removesuffix(unit))

    def observation(self, text: str) -> tuple[int, ...]:
        return self._encode(self._unit(text))

    def closing(self, answer: Sequence[int]) -> tuple[int, ...]:
        tokens = self._closing_tokens
        said = (count for count in range(len(tokens), 0, -1) if tuple(answer[-count:]) == tokens[:count])
        return tokens[next(said, 0) :]

    def answer(self, text: str) -> tuple[int, ...]:
        end = self._closing_tokens[:1]
        if not end and self._tokenizer.eos_token_id is not None:
            end = (self._tokenizer.eos_token_id,)
        return self._encode(text.strip()) + end

    def _unit(self, text: str) -> str:
        """Return a user's turn within a talk, up to where the assistant begins."""
        whole = self._render([*self._turns, {"role": "user", "content": text}], True)
        if not whole.startswith(self._talk):
            raise self._refusal()
        return whole.removeprefix(self._talk)

    def _render(self, messages: list[dict[str, str]], ask: bool) -> str:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        return str(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def _refusal(self) -> InputError:
        return InputError(
            "environment.template=chat: this tokenizer's chat template lays out a message differently once "
            "others follow it, so that turns can't be appended; use environment.template=plain"
        )


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a tokenizer puts in front of a text and behind it.

    Example: Llama's puts (1,) in front and nothing behind; T5's nothing in front and (1,) behind.
    """
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(whole) + 1) if whole[i : i + len(bare)] == bare), 0)
    return tuple(whole[:start]), tuple(whole[start + len(bare) :])


def turn_texts(tokenizer: Any, template: str, reply_end: str) -> TurnTexts:
    return ChatTexts(tokenizer) if template == "chat" else PlainTexts(tokenizer, reply_end)
