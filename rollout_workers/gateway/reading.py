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
    """Tokens that the model reads in one call: a known call that it continues, and the tokens after it.

    Example: a first call: `Read(parent=None, observed=(1, 12, 14), heard="3 + 4?", digest=b"…")`
    """

    parent: Call | None
    observed: Tokens
    heard: str  # the heard messages as text
    digest: bytes = b""  # digest of a chat's messages

    def call(self, generation: Generation, role: str) -> Call:
        return Call(self.parent, self.observed, self.heard, generation, role)


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice of an answer. Example: `Reply({"role": "assistant", "content": "7"}, "stop", 2)`"""

    message: Message
    finish_reason: str
    num_tokens: int


class Reader:
    """Reader of calls for one model; like its tokenizer, it belongs to one thread.

    Args:
        parse: function that finds calls of tools in an answer; None: refuse calls that offer tools.

    Raises:
        InputError: the chat template can't be continued turn by turn.
    """

    def __init__(self, tokenizer: Any, form: ChatForm | None, parse: Parser | None = None) -> None:
        self._tokenizer, self._parse = tokenizer, parse
        self._calls_of_tools = itertools.count(1)
        self._texts = None if form is None else ChatTexts(Chat(tokenizer, form))

    def read(self, request: Asked, history: History) -> Read:
        """Return the tokens that the model reads; known answers keep their drawn tokens.

        Raises:
            Refused: the template refuses the messages, or there is none.
        """
        if not request.is_chat:
            return self._read_prompt(request.prompt, request.role, history)
        if self._texts is None:
            raise Refused(
                400,
                "there is no chat template: call /v1/completions, or give model.chat.template=FILE.jinja; "
                "with a task of raw texts, model.chat.template=tokenizer asks for the model's own",
            )
        if request.tools and self._parse is None:
            raise Refused(
                400,
                "this model's calls can't be read, so tools are not supported; describe the tools in a "
                "message",
                "unsupported_option",
            )
        try:
            return self._read_talk(self._texts, request, history)
        except InputError as error:
            raise Refused(400, str(error)) from None

    def reply(self, request: Asked, generation: Generation) -> Reply:
        """Return the model's answer in the form that the program gets."""
        reason = "stop" if generation.finish_reason is FinishReason.STOP else "length"
        message: Message = {"role": "assistant", "content": generation.text}
        if request.tools and self._parse is not None and self._texts is not None:
            whole = str(self._texts.chat.message(generation.tokens)["content"])  # with the marks of calls
            if calls := self._calls(parsed := self._parse(whole, request.tools)):
                message = {"role": "assistant", "content": parsed.content, "tool_calls": calls}
                reason = "tool_calls"
        return Reply(message, reason, len(generation.tokens))

    def remember(self, history: History, request: Asked, read: Read, call: Call, reply: Reply) -> None:
        """Add a finished call to the history, so that later calls continue it."""
        history.add(call)
        if request.is_chat:
            (message,) = conversation([reply.message], "the answer")  # in the form in which it will come back
            history.know_talk(extended(read.digest, message), call)
        elif isinstance(request.prompt, str):
            # A text that continues after a stop string contains this string; an end token has no text.
            whole = self._tokenizer.decode(list(call.generation.tokens), skip_special_tokens=False)
            history.know_text(request.prompt + whole, call)

    def _calls(self, parsed: Parsed) -> list[dict[str, Any]]:
        """Return an answer's calls in OpenAI's form; [] if one is malformed, so that its text is visible."""
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

    def _read_talk(self, texts: ChatTexts, request: Asked, history: History) -> Read:
        messages, digests = request.messages, talk_digests(request.messages, request.tools, request.role)
        parent, count = history.find_talk(digests, messages)
        if parent is None:
            return Read(None, texts.start("", "", messages, request.tools), _heard(messages), digests[-1])
        heard = _heard(messages[count:])
        if texts.chat.follows_template:
            before, whole = continued(parent), texts.start("", "", messages, request.tools)
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
    """Return messages as plain text. Results of tools keep the marks that transcripts look for.

    >>> _heard([{"role": "tool", "content": "42"}, {"role": "user", "content": "So?"}])
    '<tool_response>\\n42\\n</tool_response>\\nSo?'
    """
    return text_of(
        [
            {**message, "content": responded([message["content"]])} if message["role"] == "tool" else message
            for message in messages
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
