"""Turn a dialogue into a frozen partner's input, and its output into an utterance."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from contracts.conversations.chat import Chat
from contracts.conversations.messages import Message
from contracts.conversations.thoughts import behind_thought
from contracts.errors import InputError
from rollout_workers.engines.base import Generation

OPENING: Message = {"role": "user", "content": "…"}  # opens templates in which the user speaks first


class PartnerTexts(Protocol):
    """Layout of a dialogue for the partner."""

    stop: tuple[str, ...]  # texts that end its utterance, besides its end token

    def tokens(self, history: Sequence[str], room: int) -> tuple[int, ...]:
        """Return at most `room` tokens of a dialogue whose last utterance is the model's."""
        ...

    def heard(self, generation: Generation) -> str:
        """Return the utterance in the partner's output."""
        ...


class PlainTalk:
    """Layout as one text, `u1 <EOU> u2 <EOU>`; a longer dialogue loses its beginning."""

    def __init__(self, tokenizer: Any, separator: str) -> None:
        self._tokenizer, self._separator = tokenizer, separator
        self.stop: tuple[str, ...] = (separator,) if separator else ()

    def tokens(self, history: Sequence[str], room: int) -> tuple[int, ...]:
        return tuple(self._tokenizer(joined(history, self._separator))["input_ids"][-room:])

    def heard(self, generation: Generation) -> str:
        return generation.text


class TalkByTemplate:
    """Layout by the partner's chat template: the partner is the assistant, and the model is its user.

    Neither hears the other's thoughts. A longer dialogue loses its oldest utterances.
    """

    def __init__(self, tokenizer: Any, chat: Chat, separator: str) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self.stop: tuple[str, ...] = (separator,) if separator else ()
        chat.text([OPENING])  # a template that refuses the system message fails now

    def tokens(self, history: Sequence[str], room: int) -> tuple[int, ...]:
        if not any(utterance.strip() for utterance in history):
            return ()
        messages = [
            {"role": "assistant" if (len(history) - place) % 2 == 0 else "user", "content": spoken(utterance)}
            for place, utterance in enumerate(history)
        ]
        for start in range(len(messages)):
            context = self._chat.tokens(self._opened(messages[start:]))
            if len(context) <= room:
                break
        return context[-room:]

    def heard(self, generation: Generation) -> str:
        tokens, end = list(generation.tokens), self._chat.end_token
        written = tokens[: tokens.index(end)] if end in tokens else tokens
        reply = spoken(str(self._chat.message(written)["content"]))
        return str(self._tokenizer.decode(self._chat.encode(reply), skip_special_tokens=True))

    def _opened(self, messages: Sequence[Message]) -> list[Message]:
        lacks_user = messages[0]["role"] == "assistant" and not self._lets_assistants_begin
        return [OPENING, *messages] if lacks_user else list(messages)

    @cached_property
    def _lets_assistants_begin(self) -> bool:
        try:
            self._chat.text([{"role": "assistant", "content": "…"}, OPENING])
        except InputError:
            return False
        return True


def spoken(text: str) -> str:
    """Return a text without its thought; "" if it ends inside a thought.

    >>> spoken("[THINK]Hm, 3 and 4.[/THINK] It is seven."), spoken("Seven.")
    ('It is seven.', 'Seven.')
    """
    return (behind_thought(text) or "").strip()


def joined(utterances: Sequence[str], separator: str) -> str:
    """Join a dialogue as DailyDialog's prompts do.

    >>> joined(["How are you ?", "Fine ."], "<EOU>")
    'How are you ? <EOU> Fine . <EOU>'
    >>> joined(["How are you ?", "Fine ."], "")
    'How are you ? Fine .'
    """
    words = (word for utterance in utterances for word in (utterance, separator))
    return " ".join(word for word in words if word)
