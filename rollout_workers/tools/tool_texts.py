"""Texts about tools, in Hermes's form, for chat templates without a place for tools."""

import json
from collections.abc import Sequence

from contracts.conversations.messages import REASONING, Message, spoken
from rollout_workers.tools.tool_calls import EXPECTED, Call, Schemas, written

TOOL = "tool"  # the role of a result's message
RESPONSE_OPENS, RESPONSE_CLOSES = "<tool_response>", "</tool_response>"


def described(tools: Schemas) -> str:
    """Return an instruction that names the tools and shows the form of a call.

    >>> print(described([{"function": {"name": "now"}}]))
    You may call these tools, one JSON schema a line:
    {"name": "now"}
    A call is written so, and several may follow each other:
    <tool_call>
    {"name": "a tool", "arguments": {"an argument": "a value"}}
    </tool_call>
    """
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = written([Call(**json.loads(EXPECTED))])
    return (
        f"You may call these tools, one JSON schema a line:\n{lines}\n"
        f"A call is written so, and several may follow each other:\n{example}"
    )


def responded(contents: Sequence[str]) -> str:
    """Return results as one text.

    >>> responded(["42"])
    '<tool_response>\\n42\\n</tool_response>'
    """
    return "\n".join(f"{RESPONSE_OPENS}\n{content}\n{RESPONSE_CLOSES}" for content in contents)


def results(names: Sequence[str], contents: Sequence[str], first: int = 1) -> tuple[Message, ...]:
    """Return the messages of results, numbered from `first`. Mistral's template needs ids of nine letters.

    >>> results(["now"], ["noon"])
    ({'role': 'tool', 'name': 'now', 'tool_call_id': 'call00001', 'content': 'noon'},)
    """
    numbered = enumerate(zip(names, contents, strict=True), first)
    return tuple(
        {"role": TOOL, "name": name, "tool_call_id": f"call{number:05}", "content": content}
        for number, (name, content) in numbered
    )


def as_users(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which the user tells the results; results in a row share a message.

    >>> as_users(results(["now", "here"], ["noon", "Rome"]))[0]["content"].count("<tool_response>")
    2
    """
    conversation: list[Message] = []
    contents: list[str] = []
    for message in messages:
        if message["role"] != TOOL:
            conversation += [*_by_the_user(contents), message]
            contents = []
        else:
            contents.append(str(message["content"]))
    return conversation + _by_the_user(contents)


def spelled_out(message: Message) -> Message:
    """Return a message with its calls as part of its content, as the model wrote them.

    >>> spelled_out({"role": "assistant", "content": "Hm.", "tool_calls": [{"function": {"name": "now"}}]})
    {'role': 'assistant', 'content': 'Hm.\\n<tool_call>\\n{"name": "now", "arguments": {}}\\n</tool_call>'}
    """
    rest = {key: value for key, value in message.items() if key not in ("tool_calls", *REASONING)}
    return {**rest, "content": spoken(message)}


def _by_the_user(contents: Sequence[str]) -> list[Message]:
    return [{"role": "user", "content": responded(contents)}] if contents else []
