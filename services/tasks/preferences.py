"""Rows of responses whose prompts and responses may be conversations, read as texts beside one prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.messages import MESSAGES, TOOLS, Message, conversation, is_conversation, text_of
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.tasks.columns import in_json, split_answer, tools_of
from services.tasks.rows import check_columns, text_at


@dataclass(frozen=True, slots=True)
class Conversed:
    """A row's prompt, and the row with texts in place of conversations.

    Example: a row of `chosen` and `rejected`, each the question and an answer, has the question as its prompt
    and the two answers' texts in its columns.
    """

    prompt: Prompt  # without an id
    row: Mapping[str, Any]


def conversed(row: Mapping[str, Any], prompt: str, responses: Sequence[str], where: str) -> Conversed:
    """Read a row's conversations.

    Args:
        prompt: the column of the prompt; it may be missing where the responses are whole conversations.
        responses: columns with responses, of which some may be missing.

    Raises:
        InputError: the responses of a row begin differently, or do not end with an answer.
    """
    row = {**row, **{name: in_json(row[name]) for name in (prompt, *responses) if name in row}}
    found = {
        name: _answered(row[name], f"{where}, column '{name}'") for name in responses if _is_one(row, name)
    }
    texts = {**row, **{name: answer for name, (_, answer) in found.items()}}
    asked = (
        conversation(row[prompt], f"{where}, column '{prompt}'") if is_conversation(row.get(prompt)) else None
    )
    befores = [before for before, _ in found.values() if before]
    for before in befores[1:] + ([asked] if asked and befores else []):
        if before != befores[0]:
            raise InputError(
                f"{where}: the conversations in columns {', '.join([prompt, *found])} differ before their "
                f"last answer; expected one prompt with its answers"
            )
    if asked is None and not befores:
        check_columns(row, [prompt], where)
        return Conversed(Prompt("", text_at(row, prompt, where)), texts)
    messages = asked or befores[0]
    tools = tools_of(row.get(TOOLS), where)
    meta = {MESSAGES: messages} | ({TOOLS: tools} if tools else {})
    text = text_of(messages)
    return Conversed(Prompt("", text, meta=meta), {**texts, prompt: text})


def _is_one(row: Mapping[str, Any], name: str) -> bool:
    return is_conversation(row.get(name))


def _answered(value: Any, where: str) -> tuple[list[Message], str]:
    """Return what comes before the last answer, and its text."""
    before, answer = split_answer(conversation(value, where))
    if answer is None or answer.get("tool_calls"):
        raise InputError(f"{where}: expected an assistant's text as the last message, got {value[-1]!r:.200}")
    return list(before), str(answer["content"])
