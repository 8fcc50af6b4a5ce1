"""Turn a conversation's texts into tokens, as plain texts in a row or by a tokenizer's chat template.

Every piece is tokenized once, alone, and pieces are joined as tokens. So the model's answer keeps its drawn
tokens.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from contracts.conversations.chat import ASKED, SYSTEM_ROLES, Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import Message
from contracts.errors import InputError
from rollout_workers.tools.tool_calls import Schemas
from rollout_workers.tools.tool_texts import TOOL, as_users, described, results, spelled_out


class TurnTexts(Protocol):
    """Layout of a conversation in tokens."""

    def beginning(self, header: str) -> tuple[int, ...]:
        """Return the start of every context."""
        ...

    def overlap(self, header: str) -> tuple[int, ...]:
        """Return the first tokens of observations that a context's start already has."""
        ...

    def start(
        self, header: str, text: str, messages: Sequence[Message] = (), tools: Schemas = ()
    ) -> tuple[int, ...] | None:
        """Return an episode's first context as a whole; None: it is the beginning and an observation."""
        ...

    def observation(self, text: str, messages: Sequence[Message] = ()) -> tuple[int, ...]:
        """Return an observation, or the messages instead, up to the start of the model's answer."""
        ...

    def closing(self, answer: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens between an answer and the next observation; () if the answer has them."""
        ...

    def following(self, answer: Sequence[int], observation: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of an observation after an answer, with the tokens between, none twice."""
        ...

    def answer(self, text: str) -> tuple[int, ...]:
        """Return an answer as the model would generate it, with its end."""
        ...

    @property
    def ending(self) -> tuple[int, ...]:
        """Return the tokens that an encoder needs at a context's end; () for causal models."""
        ...


class PlainTexts:
    """Layout of plain texts. An answer begins with a blank, like a word in a sentence.

    Example: with `reply_end="\\n"` a game reads "… You choose to" + " go east\\n" + "You are in …".
    """

    def __init__(self, tokenizer: Any, reply_end: str) -> None:
        self._tokenizer, self._reply_end = tokenizer, reply_end
        self._before, self.ending = special_tokens(tokenizer)
        self._reply_end_tokens = self.observation(reply_end)

    def beginning(self, header: str) -> tuple[int, ...]:
        return self._before + self.observation(header)

    def overlap(self, header: str) -> tuple[int, ...]:
        return ()

    def start(
        self, header: str, text: str, messages: Sequence[Message] = (), tools: Schemas = ()
    ) -> tuple[int, ...] | None:
        return None

    def observation(self, text: str, messages: Sequence[Message] = ()) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def closing(self, answer: Sequence[int]) -> tuple[int, ...]:
        written = self._tokenizer.decode(list(answer), skip_special_tokens=False)
        is_closed = written.endswith(self._reply_end.strip() or self._reply_end)
        return () if is_closed else self._reply_end_tokens

    def following(self, answer: Sequence[int], observation: tuple[int, ...]) -> tuple[int, ...]:
        return self.closing(answer) + observation

    def answer(self, text: str) -> tuple[int, ...]:
        tokens = self.observation(f" {text.strip()}") + self._reply_end_tokens
        if self._reply_end_tokens or self._tokenizer.eos_token_id is None:
            return tokens
        return (*tokens, self._tokenizer.eos_token_id)


class ChatTexts:
    """Layout by a chat template: observations are the user's messages, the header the system's.

    If a template takes no system message, or puts it into the user's first message, the header comes before
    the first observation. If it has no place for tools, the header describes them, and the user tells their
    results.

    Raises:
        InputError: the template can't be continued turn by turn.
    """

    ending: tuple[int, ...] = ()

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        if not chat.follows_template:
            chat.turn([ASKED])

    def beginning(self, header: str) -> tuple[int, ...]:
        before, head = self._edges(header)
        return self.chat.encode(before.removesuffix(head))

    def overlap(self, header: str) -> tuple[int, ...]:
        before, head = self._edges(header)
        return () if before.endswith(head) else self.chat.encode(head)

    def start(
        self, header: str, text: str, messages: Sequence[Message] = (), tools: Schemas = ()
    ) -> tuple[int, ...]:
        conversation = self._as_taken(messages) or [{"role": "user", "content": text}]
        if tools and not self.chat.shows_tools:
            header, tools = "\n\n".join(filter(None, (header, described(tools)))), ()
        return self.chat.tokens(self.opened(header, conversation), tools)

    def observation(self, text: str, messages: Sequence[Message] = ()) -> tuple[int, ...]:
        return self.chat.turn(self._as_taken(messages) or [{"role": "user", "content": text}])

    def closing(self, answer: Sequence[int]) -> tuple[int, ...]:
        return self.chat.closing(answer)

    def following(self, answer: Sequence[int], observation: tuple[int, ...]) -> tuple[int, ...]:
        return self.chat.following(answer, observation)

    def answer(self, text: str) -> tuple[int, ...]:
        return self.chat.answer(text)

    def opened(self, header: str, messages: Sequence[Message]) -> list[Message]:
        """Return messages with the header in front, as a message or as a part of the first message."""
        if not header:
            return list(messages)
        system, first = f"{self.chat.system}\n\n{header}" if self.chat.system else header, messages[0]
        if self._takes_system and first["role"] not in SYSTEM_ROLES:
            return [{"role": "system", "content": system}, *messages]
        return [{**first, "content": f"{system}\n\n{first['content']}"}, *messages[1:]]

    @cached_property
    def _takes_system(self) -> bool:
        try:
            self.chat.text([{"role": "system", "content": "…"}, ASKED])
        except InputError:
            return False
        return True

    def _as_taken(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in the form that the template accepts; [] for none."""
        has_results = any(message["role"] == TOOL for message in messages)
        conversation = as_users(messages) if has_results and not self._takes_results else list(messages)
        has_calls = any(message.get("tool_calls") for message in messages)
        return (
            [spelled_out(message) for message in conversation]
            if has_calls and not self.chat.shows_tools
            else conversation
        )

    @cached_property
    def _takes_results(self) -> bool:
        """Return whether a result may follow an answer, as a separate message."""
        mark = str(ASKED["content"])
        try:
            return mark in self.chat.turn_text(results(["placeholder"], [mark]))
        except InputError:
            return False

    def _edges(self, header: str) -> tuple[str, str]:
        """Return the text before the first observation, and the text before each later one."""
        mark = str(ASKED["content"])
        before = self.chat.text(self.opened(header, [ASKED])).partition(mark)[0]
        return before, self.chat.turn_text([ASKED]).partition(mark)[0]


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a tokenizer puts before a text and after it.

    Example: Llama's puts (1,) before and nothing after; T5's nothing before and (1,) after.
    """
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(whole) + 1) if whole[i : i + len(bare)] == bare), 0)
    return tuple(whole[:start]), tuple(whole[start + len(bare) :])


def turn_texts(tokenizer: Any, template: str, reply_end: str, chat: ChatForm | None = None) -> TurnTexts:
    """Return the layout of an environment's conversations.

    Args:
        template: plain, chat, or auto: by the chat template if there is one.
        chat: form of the chat template; None: the tokenizer's template.
    """
    if template == "chat" or (template == "auto" and getattr(tokenizer, "chat_template", None)):
        return ChatTexts(Chat(tokenizer, chat or ChatForm()))
    return PlainTexts(tokenizer, reply_end)
