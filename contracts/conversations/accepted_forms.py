"""Forms of messages that a chat template accepts, found by rendering placeholders.

part of a message | forms, the data's own first
--- | ---
reasoning | `reasoning_content`, `reasoning`, `thinking`; a list of blocks; `<think>…</think>` in the content
arguments of a call | the data's own text; a mapping
no content beside a call | null; an empty text; no key
role of a result | `tool`, `ipython`, `function`
role of instructions | `system`, `developer`

Nothing is dropped. If the template leaves out a part of a conversation, Whetstone refuses it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from contracts.conversations.called_tools import arguments_of
from contracts.conversations.messages import REASONING, Message, reasoning_of
from contracts.conversations.rendering import ASKED, SAID, Rendering
from contracts.conversations.thoughts import opening_mark, with_thought
from contracts.errors import InputError

BLOCKS, IN_CONTENT = "blocks", "content"  # places of reasoning that are not a field
THOUGHT = "Placeholder-of-a-thought"
KEY, VALUE = "placeholder_of_a_key", "Placeholder-of-a-value"
ABSENT = "absent"
CALLED = "placeholder_of_a_call"
# Mistral requires nine letters; Kimi writes the name in the id alone.
IDS = ("call00001", f"functions.{CALLED}:0")
ROLES = {
    "developer": ("developer", "system"),
    **dict.fromkeys(("tool", "ipython", "function"), ("tool", "ipython", "function")),
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """Form of calls that a template shows.

    Example: DeepSeek-R1's takes `CallForm(content=None, arguments=frozenset({"text"}))`.
    """

    content: str | None  # text; with calls alone: None, "", or ABSENT for no such key
    arguments: frozenset[str]  # text, mapping, or both


class AcceptedForms:
    """Translator of messages to the forms that one template accepts."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._roles: dict[str, str] = {}
        self._lost: dict[Any, str] = {}  # shape of a conversation: its parts that the template leaves out

    def translated(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in the forms that the template accepts.

        Raises:
            InputError: a message has reasoning, but the template has no place for it.
        """
        return [self._translated(number, message) for number, message in enumerate(messages, start=1)]

    def refuse_lost(self, messages: Sequence[Message], *, ask: bool) -> None:
        """Refuse a conversation if the template leaves out a message, or a message's calls.

        Args:
            messages: from `translated`.

        Raises:
            InputError: names the message and its missing part.
        """
        shape = (ask, tuple(_shape(message) for message in messages))
        if shape not in self._lost:
            marked = [self._marked(number, message) for number, message in enumerate(messages, start=1)]
            rendered = self._rendering.tried(marked, ask=ask)
            self._lost[shape] = _left_out(marked, rendered) if rendered else ""
        if lost := self._lost[shape]:
            raise InputError(
                f"the chat template leaves out {lost} of a conversation of "
                f"{', '.join(str(message['role']) for message in messages)}: expected a conversation without "
                "it, or model.chat.template=FILE with a template that has a place for it"
            )

    @cached_property
    def shows_tools(self) -> bool:
        """Return whether the template lists the tools that the model may call."""
        return str(PROBE["function"]["name"]) in self._rendering.tried([ASKED], [PROBE], ask=True)

    @cached_property
    def reasoning(self) -> str | None:
        """Return the template's place for reasoning: a field, BLOCKS, IN_CONTENT; None without a place."""
        for place in (*REASONING, BLOCKS):
            text = self._rendering.tried([ASKED, _with_reasoning(SAID, THOUGHT, place)])
            before, _, behind = text.partition(str(SAID["content"]))
            is_once = before.count(THOUGHT) == 1 and THOUGHT not in behind
            if is_once and "'thinking'" not in before:  # not a list as Python shows it
                return place
        return IN_CONTENT if self._knows_thoughts else None

    @cached_property
    def call(self) -> CallForm | None:
        """Return the form of calls that the template shows; None if it shows none."""
        arguments = {"text": json.dumps({KEY: VALUE}), "mapping": {KEY: VALUE}}
        for behind in ([RESULT], []):  # some templates have no place for results
            for content in (None, "", ABSENT):
                shown = {
                    kind for kind, example in arguments.items() if self._shows_call(content, example, behind)
                }
                if shown:
                    return CallForm(content, frozenset(shown))
        return None

    def call_message(self, name: str = CALLED) -> Message:
        """Return an assistant's message that calls a tool with a placeholder, in the template's form."""
        return self._translated(0, _call(name, {KEY: VALUE}))

    @cached_property
    def _knows_thoughts(self) -> bool:
        """Return whether prompts open a thought, or the template removes thoughts from contents."""
        if opening_mark(self._rendering.tried([ASKED], ask=True)):
            return True
        text = self._rendering.tried([ASKED, _with_reasoning(SAID, THOUGHT, IN_CONTENT)])
        return str(SAID["content"]) in text and THOUGHT not in text

    def _translated(self, number: int, message: Message) -> Message:
        translated = {**message, "role": self._role(str(message["role"]))}
        if translated["role"] != "assistant":
            return translated
        if reasoning := reasoning_of(translated):
            if self.reasoning is None:
                name = next(name for name in REASONING if translated.get(name))
                raise InputError(
                    f"message {number} has {name!r}, for which this chat template has no place: put the "
                    "thought into its content, leave it out, or give model.chat.template=FILE"
                )
            translated = _with_reasoning(translated, reasoning, self.reasoning)
        if translated.get("tool_calls"):
            return _with_calls(translated, self.call or CallForm("", frozenset({"text", "mapping"})))
        return translated

    def _role(self, role: str) -> str:
        if role in ROLES and role not in self._roles:
            forms = ROLES[role]
            # A result follows a call, and some templates refuse it elsewhere.
            before = [ASKED, self.call_message()] if "tool" in forms else []
            behind = [] if before else [ASKED]
            self._roles[role] = role
            for form in (role, *forms):
                probe = {**RESULT, "role": form} if before else {"role": form, "content": VALUE}
                if str(probe["content"]) in self._rendering.tried([*before, probe, *behind], ask=True):
                    self._roles[role] = form
                    break
        return self._roles.get(role, role)

    def _shows_call(self, content: str | None, arguments: Any, behind: Sequence[Message]) -> bool:
        """Return whether the template shows a call unchanged, without a nested text or Python's mapping."""
        messages = [_without_content(_call(CALLED, arguments, name), content) for name in IDS]
        texts = [self._rendering.tried([ASKED, message, *behind]) for message in messages]
        text = next((text for text in texts if CALLED in text), "")
        writes_none = text.count("None") > self._rendering.tried([ASKED, SAID]).count("None")
        if VALUE not in text or writes_none:
            return False
        return arguments in text if isinstance(arguments, str) else f"'{KEY}': " not in text

    def _marked(self, number: int, message: Message) -> Message:
        """Return a message with marks in place of its content and of the names in its calls."""
        marked = {name: value for name, value in message.items() if name not in REASONING}
        if message.get("content"):
            marked["content"] = f"Placeholder{number}x"
        if calls := message.get("tool_calls"):
            arguments: Any = {KEY: VALUE}
            if self.call is not None and "mapping" not in self.call.arguments:
                arguments = json.dumps(arguments)
            marked["tool_calls"] = [
                _marked_call(call, f"placeholder_{number}_{place}x", arguments)
                for place, call in enumerate(calls)
            ]
        return marked


PROBE: Mapping[str, Any] = {  # the rendered text must name this tool
    "type": "function",
    "function": {
        "name": "placeholder_of_a_tool",
        "description": "Nothing.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
RESULT: Message = {
    "role": "tool",
    "name": CALLED,
    "tool_call_id": "call00001",
    "content": "Placeholder-of-a-result",
}


def _with_reasoning(message: Message, thought: str, place: str) -> dict[str, Any]:
    rest = {name: value for name, value in message.items() if name not in REASONING}
    content = message.get("content") or ""
    if place == BLOCKS:
        text = [{"type": "text", "text": content}] if content else []
        return {**rest, "content": [{"type": "thinking", "thinking": thought}, *text]}
    if place == IN_CONTENT:
        return {**rest, "content": with_thought(content, thought)}
    return {**rest, place: thought}


def _with_calls(message: Message, form: CallForm) -> dict[str, Any]:
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        arguments = function.get("arguments")
        if "text" not in form.arguments and isinstance(arguments, str | None):
            arguments = arguments_of(arguments)
        elif "mapping" not in form.arguments and not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        calls.append({**call, "function": {**function, "arguments": arguments}})
    translated = {**message, "tool_calls": calls}
    return translated if translated.get("content") else _without_content(translated, form.content)


def _without_content(message: Message, content: str | None) -> dict[str, Any]:
    rest = {name: value for name, value in message.items() if name != "content"}
    return rest if content == ABSENT else {**rest, "content": content}


def _call(name: str, arguments: Any, called_id: str = "call00001") -> Message:
    call = {"id": called_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _marked_call(call: Mapping[str, Any], mark: str, arguments: Any) -> dict[str, Any]:
    name = str(call.get("function", call)["name"])
    number = {"id": str(call["id"]).replace(name, mark)} if "id" in call else {}
    return {**call, **number, "function": {"name": mark, "arguments": arguments}}


def _shape(message: Message) -> tuple[Any, ...]:
    content = message.get("content", ABSENT)
    return message["role"], type(content), bool(content), len(message.get("tool_calls") or ())


def _left_out(marked: Sequence[Message], rendered: str) -> str:
    for number, message in enumerate(marked, start=1):
        content, calls = message.get("content"), message.get("tool_calls") or ()
        if isinstance(content, str) and content and content not in rendered:
            return f"message {number} ({message['role']})"
        if any(call["function"]["name"] not in rendered for call in calls):
            return f"the tool calls in message {number} ({message['role']})"
    return ""
