"""Turn a call into the tokens that the model reads, and the model's tokens into the program's reply."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import Message, conversation, text_of
from contracts.errors import InputError
from contracts.rollout import FinishReason
from rollout_workers.engines.base import Generation
from rollout_workers.gateway.bodies import Asked, Refused
from rollout_workers.gateway.history import Call, History, continued, extended, talk_digests
from rollout_workers.tools.tool_calls import Call as ToolCall
from rollout_workers.tools.tool_calls import Parsed, Parser
from rollout_workers.tools.tool_texts import responded
from rollout_workers.turn_texts import ChatTexts

Tokens = tuple[int, ...]
TOO_LONG = "context_length_exceeded"  # OpenAI's name


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens that the model reads in one call: a known call that it goes on from, and the tokens behind it.

    Example: a first call: `Read(parent=None, observed=(1, 12, 14), heard="3 + 4?", digest=b"…")`
    """

    parent: Call | None
    observed: Tokens
    heard: str  # for people
    digest: bytes = b""  # of a chat's messages

    def call(self, generation: Generation, role: str) -> Call:
        return Call(self.parent, self.observed, self.heard, generation, role)


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice of an answer. Example: `Reply({"role": "assistant", "content": "7"}, "stop", 2)`"""

    message: Message
    finish_reason: str
    num_tokens: int


class Reader:
    """Reader of calls for one model; it belongs to one thread, as its tokenizer does.

    Args:
        parse: finds calls of tools in an answer; None: programs that offer tools are refused.

    Raises:
        InputError: the chat template can't be continued turn by turn.
    """

    def __init__(self, tokenizer: Any, form: ChatForm | None, parse: Parser | None = None) -> None:
        self._tokenizer, self._parse = tokenizer, parse
        self._calls_of_tools = itertools.count(1)
        self._texts = None if form is None else ChatTexts(Chat(tokenizer, form))

    def read(self, asked: Asked, history: History) -> Read:
        """Return what the model reads; known answers keep the tokens that were drawn.

        Raises:
            Refused: the template refuses the messages, or there is none.
        """
        if not asked.is_chat:
            return self._read_prompt(asked.prompt, asked.role, history)
        if self._texts is None:
            raise Refused(
                400,
                "there is no chat template: call /v1/completions, or give model.chat.template=FILE.jinja; "
                "with a task of raw texts, model.chat.template=tokenizer asks for the model's own",
            )
        if asked.tools and self._parse is None:
            raise Refused(400, "tools are not supported here: say them in a message", "unsupported_option")
        try:
            return self._read_talk(self._texts, asked, history)
        except InputError as error:
            raise Refused(400, str(error)) from None

    def reply(self, asked: Asked, generation: Generation) -> Reply:
        """Return the model's answer as the program gets it."""
        reason = "stop" if generation.finish_reason is FinishReason.STOP else "length"
        message: Message = {"role": "assistant", "content": generation.text}
        if asked.tools and self._parse is not None and self._texts is not None:
            whole = str(self._texts.chat.message(generation.tokens)["content"])  # with the marks of calls
            if calls := self._calls(parsed := self._parse(whole, asked.tools)):
                message = {"role": "assistant", "content": parsed.content, "tool_calls": calls}
                reason = "tool_calls"
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

    def _calls(self, parsed: Parsed) -> list[dict[str, Any]]:
        """Return an answer's calls in OpenAI's form; [] where one is malformed, so that its text is seen."""
        if not all(isinstance(call, ToolCall) for call in parsed.calls):
            return []
        return [
            {
                "id": f"call{next(self._calls_of_tools) % 10**5:05}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in parsed.calls
            if isinstance(call, ToolCall)
        ]

    def _read_talk(self, texts: ChatTexts, asked: Asked, history: History) -> Read:
        messages, digests = asked.messages, talk_digests(asked.messages, asked.tools, asked.role)
        parent, count = history.find_talk(digests, messages)
        if parent is None:
            return Read(None, texts.start("", "", messages, asked.tools), _heard(messages), digests[-1])
        heard = _heard(messages[count:])
        if texts.chat.follows_template:
            before, whole = continued(parent), texts.start("", "", messages, asked.tools)
            if whole[: len(before)] != before:
                return Read(None, whole, _heard(messages), digests[-1])
            return Read(parent, whole[len(before) :], heard, digests[-1])
        observed = texts.following(parent.generation.tokens, texts.observation("", messages[count:]))
        return Read(parent, observed, heard, digests[-1])

    def _read_prompt(self, prompt: str | Tokens, role: str, history: History) -> Read:
        if isinstance(prompt, tuple):
            if max(prompt) >= len(self._tokenizer):
                raise Refused(400, f"prompt: expected tokens below {len(self._tokenizer)}, got {max(prompt)}")
            return Read(None, prompt, self._tokenizer.decode(list(prompt)))
        parent, rest = history.find_text(prompt, role)
        if parent is None or not rest:
            return Read(None, tuple(self._tokenizer(prompt)["input_ids"]), prompt)
        return Read(parent, self._encoded(rest), rest)

    def _encoded(self, text: str) -> Tokens:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _heard(messages: Sequence[Message]) -> str:
    """Return messages as plain text. Results of tools have the marks by which transcripts find them.

    >>> _heard([{"role": "tool", "content": "42"}, {"role": "user", "content": "So?"}])
    '<tool_response>\\n42\\n</tool_response>\\nSo?'
    """
    return text_of(
        [
            {**each, "content": responded([each["content"]])} if each["role"] == "tool" else each
            for each in messages
        ]
    )


def beyond_window(num_tokens: int, room: int) -> Refused:
    """Return the refusal of a context that leaves no room for an answer, in OpenAI's words."""
    return Refused(
        400,
        f"This model's maximum context length is {room} tokens before an answer, and the prompt has "
        f"{num_tokens}",
        TOO_LONG,
    )
