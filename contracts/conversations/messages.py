"""Conversations as lists of messages, in the common forms of data sets.

A prompt's conversation is in its meta data under `messages`, and the model's tools under `tools`. So rewards
see both, and data sets keep both. A response that is more than a text has a key, too.

roles | read as
--- | ---
`human`, `prompter` | user
`gpt`, `chatgpt`, `bing`, `bard`, `claude`, `model`, `ai`, `bot` | assistant
`function_call`, `tool_call` (LLaMA-Factory, ms-swift) | the calls of an assistant, in JSON
`observation`, `tool_response`, `function_response`, `tool_result` | tool
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.conversations.called_tools import arguments_of, called, numbered, of_text
from contracts.conversations.called_tools import without_nulls as without_nulls
from contracts.conversations.thoughts import behind_thought, with_thought
from contracts.errors import InputError

Message = Mapping[str, Any]  # {"role": "user", "content": "…"}, and tool_calls, name, tool_call_id, …

MESSAGES, TOOLS = "messages", "tools"  # keys of a prompt's meta data
RESPONSE = "response_message"  # key of the meta data with a response that is more than a text
REASONING = ("reasoning_content", "reasoning", "thinking")  # names of an answer's thought, beside its content
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
CALLS = "function_call"
OTHER_NAMES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "claude", "model", "ai", "bot"), "assistant"),
    **dict.fromkeys(("observation", "tool_response", "tool_result", "function_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call", "tool_calls"), CALLS),
}
EXAMPLE = '[{"role": "user", "content": "…"}]'


def is_conversation(value: Any) -> bool:
    """Return whether a value looks like a list of messages, whether or not they are in order.

    >>> is_conversation([{"role": "user", "content": "Hi!"}]), is_conversation(["Hi!"]), is_conversation([])
    (True, False, False)
    """
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(message, Mapping) and bool({"role", "from"} & message.keys()) for message in value)


def conversation(value: Any, where: str, keeps_nulls: bool = False) -> list[dict[str, Any]]:
    """Return messages in one form: with `role` and `content`, and without empty fields.

    ShareGPT's keys (`from`, `value`) are renamed, and lists of text parts joined. Calls have one form, with
    the data's arguments; a message with calls alone has null as its content.

    >>> conversation([{"from": "human", "value": "Hi!"}], "here")
    [{'role': 'user', 'content': 'Hi!'}]
    >>> call = '{"name": "now", "arguments": {}}'
    >>> conversation([{"from": "function_call", "value": call}], "here")[0]["role"]
    'assistant'

    Args:
        keeps_nulls: whether a null argument of a call is a value; otherwise a table's column added it.

    Raises:
        InputError: `value` is not a list of messages, or nested too deeply; the message begins with `where`.
    """
    try:
        if not is_conversation(value):
            raise InputError(f"{where}: expected a list of messages such as {EXAMPLE}, got {value!r:.200}")
        numbers = enumerate(value, start=1)
        read = [_message(message, f"{where}, message {number}", keeps_nulls) for number, message in numbers]
    except RecursionError:
        raise InputError(f"{where}: a message or the JSON of a call is nested too deeply") from None
    return numbered(_turns(read))


def text_of(messages: Sequence[Message]) -> str:
    """Return a conversation as plain text: the content of each message, in lines.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}])
    'Be brief.\\nHi!'
    """
    return "\n".join(content for message in messages if (content := str(message.get("content") or "")))


def spoken(message: Message) -> str:
    """Return an answer as one text: its thought, its content, and its calls in Hermes's form.

    >>> spoken({"content": "Hm.", "tool_calls": [{"function": {"name": "now", "arguments": "{}"}}]})
    'Hm.\\n<tool_call>\\n{"name": "now", "arguments": {}}\\n</tool_call>'
    """
    functions = [call.get("function", call) for call in message.get("tool_calls") or ()]
    calls = [
        {"name": function["name"], "arguments": arguments_of(function.get("arguments"))}
        for function in functions
    ]
    lines = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    content, thought = str(message.get("content") or ""), reasoning_of(message).strip()
    text = "\n".join(filter(None, (content, *lines)))
    return with_thought(text, thought) if thought else text


def response_meta(answer: Message) -> dict[str, Message]:
    """Return the meta data of a prompt with this answer as its response; {} if its text alone suffices."""
    content = answer.get("content") or ""
    is_text = content == content.strip() and not reasoning_of(answer) and not answer.get("tool_calls")
    return {} if is_text else {RESPONSE: answer}


def reasoning_of(message: Message) -> str:
    """Return a message's thought beside its content; "" without one.

    >>> reasoning_of({"role": "assistant", "thinking": "3 + 4", "content": "7"})
    '3 + 4'
    """
    return next((str(message[name]) for name in REASONING if message.get(name)), "")


def _turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with calls of a separate role joined to the assistant's turn before them."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        before = turns[-1] if turns else None
        if message["role"] == CALLS:
            message = {**message, "role": "assistant"}
            if before is not None and before["role"] == "assistant":
                calls = [*before.get("tool_calls", ()), *message["tool_calls"]]
                text = "".join(filter(None, (before["content"], message["content"]))) or None
                message = {**message, **before, "content": text, "tool_calls": calls}
                turns.pop()
        turns.append(message)
    return turns


def _message(message: Mapping[str, Any], where: str, keeps_nulls: bool) -> dict[str, Any]:
    fields = {name: value for name, value in message.items() if value is not None}
    if "role" not in fields and "from" not in fields:
        raise InputError(f"{where}: expected a role, one of {', '.join(ROLES)}; got {dict(message)!r:.200}")
    if "role" not in fields:
        fields = {"role": fields.pop("from"), "content": fields.pop("value", None), **fields}
    name = str(fields["role"])
    role = name if name in ROLES else OTHER_NAMES.get(name.lower(), name.lower())
    if role == CALLS:
        content, calls = of_text(fields.get("content"), where, keeps_nulls)
        return {**fields, "role": role, "content": content, "tool_calls": calls}
    if role not in ROLES:
        raise InputError(f"{where}: expected a role, one of {', '.join(ROLES)}; got {name!r:.80}")
    content = _content(fields.get("content"), where)
    has_calls = "tool_calls" in fields  # clients send an empty list beside a null content
    calls = called(fields.pop("tool_calls", None), fields.pop("function_call", None), where, keeps_nulls)
    if content is None and not calls and has_calls:
        content = ""
    elif content is None and not calls:
        raise InputError(f"{where}: expected a text under 'content', got {dict(message)!r:.200}")
    fields |= {"tool_calls": calls} if calls else {}
    return with_one_thought({**fields, "role": role, "content": content}, where)


def with_one_thought(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a message without empty reasoning, and without reasoning that its content repeats.

    Raises:
        InputError: the message has two thoughts.
    """
    names = [name for name in REASONING if name in message]
    if not names:
        return message
    thoughts = {str(message[name]).strip() for name in names} - {""}
    content = message["content"] or ""
    rest = {name: value for name, value in message.items() if name not in REASONING}
    behind = behind_thought(content)
    if behind != content and any(thought not in content for thought in thoughts):
        raise InputError(f"{where}: {names[0]} and the thought in content differ; expected one thought")
    if len(thoughts) > 1:
        raise InputError(f"{where}: {' and '.join(names)} differ; expected one thought")
    if not thoughts or behind != content:
        return rest
    kept = next(name for name in names if str(message[name]).strip())
    return {**rest, kept: message[kept]}


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
