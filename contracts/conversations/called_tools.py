"""Calls of tools in messages: one form for the ways in which data sets write them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.conversations.thoughts import behind_thought
from contracts.errors import InputError

EXAMPLE = '{"name": "a tool", "arguments": {"an argument": "a value"}}'


def called(calls: Any, call: Any, where: str, keeps_nulls: bool = False) -> list[dict[str, Any]]:
    """Return an assistant's calls as `{"type": "function", "function": {"name": …, "arguments": …}}`.

    Arguments stay unchanged, a mapping or JSON in a text: a template takes one of them, or both.

    Args:
        calls: the value of `tool_calls`.
        call: the value of `function_call`, OpenAI's older form.
        keeps_nulls: whether a null is an argument's value; otherwise a table's column added it.

    Raises:
        InputError: the values are not calls.

    >>> called(None, {"name": "now", "arguments": "{}"}, "here")
    [{'type': 'function', 'function': {'name': 'now', 'arguments': '{}'}}]
    """
    tool_calls = [call] if call and not calls else calls or []
    if not isinstance(tool_calls, list):
        raise InputError(f"{where}: expected a list of calls such as {EXAMPLE}, got {tool_calls!r:.200}")
    return [_one(tool_call, where, keeps_nulls) for tool_call in tool_calls]


def of_text(content: Any, where: str, keeps_nulls: bool = False) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the calls in the content of a message for calls alone, and the text before them.

    >>> of_text('{"name": "now", "arguments": {}}', "here")[1][0]["function"]
    {'name': 'now', 'arguments': {}}

    Raises:
        InputError: the content is neither a call nor a list of calls, in JSON.
    """
    before, value = None, content
    if isinstance(content, str):
        text = behind_thought(content) or ""  # LLaMA-Factory allows a thought before it
        before = content.removesuffix(text).strip() or None
        try:
            value = json.loads(text)
        except ValueError:
            raise InputError(f"{where}: expected a call such as {EXAMPLE}, got {content!r:.200}") from None
        keeps_nulls = True  # a table adds no nulls inside a text
    calls = called(value if isinstance(value, list) else [value], None, where, keeps_nulls)
    return before, [{"id": "", **call} for call in calls]  # `numbered` sets the id


def numbered(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Set ids of nine letters, which Mistral requires, in calls of `of_text` and in their results.

    >>> call = {"id": "", "function": {"name": "now"}}
    >>> numbered([{"role": "assistant", "tool_calls": [call]}, {"role": "tool"}])[1]
    {'tool_call_id': 'call00001', 'name': 'now', 'role': 'tool'}
    """
    with_ids: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    count = 0
    for message in messages:
        if any(call.get("id") == "" for call in message.get("tool_calls", ())):
            waiting = [
                {**call, "id": call["id"] or f"call{count + place:05}"}
                for place, call in enumerate(message["tool_calls"], start=1)
            ]
            count += len(waiting)
            message = {**message, "tool_calls": list(waiting)}
        elif message["role"] == "tool" and waiting:
            call = waiting.pop(0)
            message = {"tool_call_id": call["id"], "name": call["function"]["name"]} | message
        with_ids.append(message)
    return with_ids


def arguments_of(arguments: Any) -> Any:
    """Return a call's arguments as a value; a text that is not JSON stays unchanged.

    >>> arguments_of('{"city": "Rome"}'), arguments_of(None), arguments_of("Rome")
    ({'city': 'Rome'}, {}, 'Rome')

    Raises:
        InputError: the text is nested too deeply for the parser.
    """
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments
    except RecursionError:
        raise InputError("the arguments of a call are nested too deeply") from None


def without_nulls(value: Any) -> Any:
    """Return a value without null fields: a table's column gives each mapping the keys of all others.

    >>> without_nulls({"a": None, "b": [{"c": 1, "d": None}]})
    {'b': [{'c': 1}]}
    """
    if isinstance(value, Mapping):
        return {name: without_nulls(field) for name, field in value.items() if field is not None}
    return [without_nulls(element) for element in value] if isinstance(value, list) else value


def _one(call: Any, where: str, keeps_nulls: bool) -> dict[str, Any]:
    inner = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise InputError(f"{where}: expected a call such as {EXAMPLE}, got {call!r:.200}")
    function = {name: value for name, value in inner.items() if value is not None}
    around = {name: value for name, value in call.items() if value is not None}
    if inner is call:
        function.pop("type", None)
        around = {"id": function.pop("id")} if "id" in function else {}
    if not keeps_nulls:
        function = without_nulls(function)
    if "arguments" not in function:
        function["arguments"] = function.pop("parameters", {})
    return {"type": "function", **around, "function": function}
