"""Conversations as lists of messages, in the common forms of data sets.

A prompt's conversation is in its meta data, under `messages`, with the tools that the model may call under
`tools`. So rewards see both, and data sets keep both.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import InputError

Message = Mapping[str, Any]  # {"role": "user", "content": "…"}, and tool_calls, name, tool_call_id, …

MESSAGES, TOOLS = "messages", "tools"  # keys of a prompt's meta data
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
OTHER_NAMES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_response": "tool"}
EXAMPLE = '[{"role": "user", "content": "…"}]'


def is_conversation(value: Any) -> bool:
    """Return whether a value looks like a list of messages, whether or not they are in order.

    >>> is_conversation([{"role": "user", "content": "Hi!"}]), is_conversation(["Hi!"]), is_conversation([])
    (True, False, False)
    """
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(each, Mapping) and bool({"role", "from"} & each.keys()) for each in value)


def conversation(value: Any, where: str) -> list[dict[str, Any]]:
    """Return messages in one form: with `role` and `content`, and without empty fields.

    Messages as ShareGPT has them (`from`, `value`) are renamed, lists of text parts joined, and the arguments
    of tool calls read where they are JSON in a text.

    >>> conversation([{"from": "human", "value": "Hi!"}], "here")
    [{'role': 'user', 'content': 'Hi!'}]

    Raises:
        InputError: `value` is no list of messages; the message begins with `where`.
    """
    if not is_conversation(value):
        raise InputError(f"{where}: expected a list of messages such as {EXAMPLE}, got {value!r:.200}")
    return [_message(each, f"{where}, message {number}") for number, each in enumerate(value, start=1)]


def text_of(messages: Sequence[Message]) -> str:
    """Return a conversation as plain text: the content of each message, in lines.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}])
    'Be brief.\\nHi!'
    """
    return "\n".join(said for message in messages if (said := str(message.get("content") or "")))


def _message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = {name: value for name, value in given.items() if value is not None}
    if "role" not in found and "from" not in found:
        raise InputError(f"{where}: expected a role, one of {', '.join(ROLES)}; got {dict(given)!r:.200}")
    if "role" not in found:
        name = str(found.pop("from"))
        found = {"role": OTHER_NAMES.get(name, name), "content": found.pop("value", None), **found}
    role = found["role"]
    if role not in ROLES:
        raise InputError(f"{where}: expected a role, one of {', '.join(ROLES)}; got {role!r:.80}")
    content = _content(found.get("content"), where)
    if content is None and "tool_calls" not in found:
        raise InputError(f"{where}: expected a text under 'content', got {dict(given)!r:.200}")
    if found.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in found["tool_calls"]]
    return {**found, "content": content or ""}


def _content(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        kinds = {part.get("type", "text") for part in value}
        if kinds == {"text"}:
            return "".join(str(part.get("text") or "") for part in value)
        raise InputError(
            f"{where}: parts of the type {', '.join(sorted(kinds - {'text'}))}; expected text alone"
        )
    raise InputError(f"{where}: expected a text under 'content', got {value!r:.200}")


def _call(call: Any) -> Any:
    """Read a tool call's arguments where they are JSON in a text; a template writes them itself."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(inner := call.get("function"), Mapping):
        return {**call, "function": _call(inner)}
    if not isinstance(arguments := call.get("arguments"), str):
        return without_nulls(call)
    try:
        return {**call, "arguments": json.loads(arguments)}
    except ValueError:
        return dict(call)


def without_nulls(value: Any) -> Any:
    """Return a value without null fields: a table's column gives each mapping the keys of all others.

    >>> without_nulls({"a": None, "b": [{"c": 1, "d": None}]})
    {'b': [{'c': 1}]}
    """
    if isinstance(value, Mapping):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value
