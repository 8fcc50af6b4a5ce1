"""Turn a call into the tokens that the model reads, and the model's tokens into the program's reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import Message, conversation, text_of
from contracts.errors import InputError
from contracts.rollout import FinishReason
from rollout_workers.engines.base import Generation
from rollout_workers.gateway.bodies import Asked, Refused
from rollout_workers.gateway.history import Call, History, continued, extended, talk_digests

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """What the model reads in one call: a known call that it goes on from, and the tokens behind it.

    Example: a first call: `Read(parent=None, observed=(1, 12, 14), heard="3 + 4?", digest=b"…")`
    """

    parent: Call | None
    observed: Tokens
    heard: str  # for people
    digest: bytes = b""  # of a chat's messages

    def call(self, generation: Generation) -> Call:
        return Call(self.parent, self.observed, self.heard, generation)


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice of an answer. Example: `Reply({"role": "assistant", "content": "7"}, "stop", 2)`"""

    message: Message
    finish_reason: str
    num_tokens: int


class ToolReader(Protocol):
    """Finder of calls of tools in an answer."""

    def message(self, text: str, tools: Sequence[Any]) -> Message:
        """Return an answer as OpenAI's message, with `tool_calls` where it has any.

        Args:
            text: the answer, special tokens visible, without its end.
            tools: JSON schemas of functions.
        """
        ...


class Reader:
    """Reader of calls for one model; it belongs to one thread, as its tokenizer does.

    Args:
        tools: finds calls of tools; None: programs that offer tools are refused.

    Raises:
        InputError: the chat template can't be continued turn by turn.
    """

    def __init__(self, tokenizer: Any, form: ChatForm | None, tools: ToolReader | None = None) -> None:
        self._tokenizer, self._tools = tokenizer, tools
        self._chat = None if form is None else Chat(tokenizer, form)
        if self._chat is not None and not self._chat.follows_template:
            self._chat.turn([ASKED])

    def read(self, asked: Asked, history: History) -> Read:
        """Return what the model reads; known answers keep the tokens that were drawn.

        Raises:
            Refused: the template refuses the messages, or there is none.
        """
        if not asked.is_chat:
            return self._read_prompt(asked.prompt, history)
        if self._chat is None:
            raise Refused(
                400,
                "there is no chat template: call /v1/completions, or give model.chat.template=FILE.jinja; "
                "with a task of raw texts, model.chat.template=tokenizer asks for the model's own",
            )
        if asked.tools and self._tools is None:
            raise Refused(400, "tools are not supported here: say them in a message", "unsupported_option")
        try:
            return self._read_talk(self._chat, asked, history)
        except InputError as error:
            raise Refused(400, str(error)) from None

    def reply(self, asked: Asked, generation: Generation) -> Reply:
        """Return the model's answer as the program gets it."""
        reason = "stop" if generation.finish_reason is FinishReason.STOP else "length"
        message: Message = {"role": "assistant", "content": generation.text}
        if asked.tools and self._tools is not None and self._chat is not None:
            whole = str(self._chat.message(generation.tokens)["content"])
            message = self._tools.message(whole, asked.tools)
            reason = "tool_calls" if message.get("tool_calls") else reason
        return Reply(message, reason, len(generation.tokens))

    def remember(self, history: History, asked: Asked, read: Read, call: Call, reply: Reply) -> None:
        """Add a finished call to the history, so that later calls go on from it."""
        history.add(call)
        if asked.is_chat:
            (said,) = conversation([reply.message], "the answer")  # as it will be read when it comes back
            history.know_talk(extended(read.digest, said), call)
        elif isinstance(asked.prompt, str):
            # A text that goes on behind a stop string has this string; an end token has no text.
            whole = self._tokenizer.decode(list(call.generation.tokens), skip_special_tokens=False)
            history.know_text(asked.prompt + whole, call)

    def _read_talk(self, chat: Chat, asked: Asked, history: History) -> Read:
        messages, digests = asked.messages, talk_digests(asked.messages, asked.tools)
        parent, count = history.find_talk(digests, messages)
        heard = text_of(messages[count:])
        if parent is None:
            return Read(None, chat.tokens(messages, asked.tools), heard, digests[-1])
        if chat.follows_template:
            before, whole = continued(parent), chat.tokens(messages, asked.tools)
            if whole[: len(before)] != before:
                return Read(None, whole, heard, digests[-1])
            return Read(parent, whole[len(before) :], heard, digests[-1])
        observed = chat.closing(parent.generation.tokens) + chat.turn(messages[count:])
        return Read(parent, observed, heard, digests[-1])

    def _read_prompt(self, prompt: str | Tokens, history: History) -> Read:
        if isinstance(prompt, tuple):
            if max(prompt) >= len(self._tokenizer):
                raise Refused(400, f"prompt: expected tokens below {len(self._tokenizer)}, got {max(prompt)}")
            return Read(None, prompt, self._tokenizer.decode(list(prompt)))
        parent, rest = history.find_text(prompt)
        if parent is None or not rest:
            return Read(None, tuple(self._tokenizer(prompt)["input_ids"]), prompt)
        return Read(parent, self._encoded(rest), rest)

    def _encoded(self, text: str) -> Tokens:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def beyond_window(num_tokens: int, room: int) -> Refused:
    """Return the refusal of a context that leaves no room for an answer, in OpenAI's words."""
    return Refused(
        400,
        f"This model's maximum context length is {room} tokens before an answer, and the prompt has "
        f"{num_tokens}",
        "context_length_exceeded",
    )
