"""Columns of a user's rows: which hold the prompt, the references and the tools, and what is in them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.messages import (
    MESSAGES,
    TOOLS,
    Message,
    conversation,
    is_conversation,
    text_of,
    without_nulls,
)
from contracts.errors import InputError, did_you_mean
from contracts.rollout import Prompt
from services.tasks.rows import check_columns, text_at, texts_at

PROMPTS = ("prompt", "messages", "conversations", "question", "problem", "instruction")
REFERENCES = ("answer", "solution", "completion", "response", "references")
PAIRS = ("chosen", "rejected")  # whole conversations that begin with the prompt


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of rows, as they were given or guessed.

    Example: rows of GSM8K are `Columns("question", "answer")`, a chat's `Columns("messages", tools="tools")`.
    """

    prompt: str
    references: str | None = None
    tools: str | None = None
    unsure: tuple[str, ...] = ()  # columns of which each may hold the references
    has_none: bool = False  # no references were asked for, not even a conversation's last answer

    def __str__(self) -> str:
        told = f"prompts from column {self.prompt}, references from {self.references or 'none'}"
        if self.unsure:
            told += f" (task.references_column={' or '.join(self.unsure)}?)"
        return told + (f", tools from {self.tools}" if self.tools else "")


def columns_of(
    names: Sequence[str],
    prompt: str | None,
    references: str | None,
    where: str,
    key: str = "task.prompt_column",
) -> Columns:
    """Return the columns to read; what is not given is guessed by name.

    >>> columns_of(["question", "answer", "id"], None, None, "here")
    Columns(prompt='question', references='answer', tools=None, unsure=(), has_none=False)

    Args:
        prompt: the given column; None: the one of `PROMPTS` that is there.
        references: the given column; "": none; None: the one of `REFERENCES` that is there, if only one.
        key: the option that names the prompt's column, for messages.

    Raises:
        InputError: a column is missing, or several may hold the prompt.
    """
    if prompt is None:
        found = [name for name in PROMPTS if name in names] or [name for name in PAIRS if name in names][:1]
        if len(found) > 1:
            raise InputError(
                f"{where}: columns {' and '.join(found)} may hold the prompt: give {key}={' or '.join(found)}"
            )
        if not found:
            raise InputError(
                f"{where}: there is no column 'prompt'{did_you_mean('prompt', names)}. Give {key}=NAME"
            )
        prompt = found[0]
    check_columns(names, [prompt, *([references] if references else [])], where)
    answers = [name for name in REFERENCES if name in names and name != prompt] if references is None else []
    tools = TOOLS if TOOLS in names and prompt != TOOLS else None
    sure = answers[0] if len(answers) == 1 else None
    unsure = tuple(answers) if len(answers) > 1 else ()
    return Columns(prompt, references or sure, tools, unsure, has_none=references == "")


def prompt_at(row: Mapping[str, Any], columns: Columns, where: str, *, guessed: bool = False) -> Prompt:
    """Return a row's prompt without an id: a text or a conversation, with references and tools.

    The last answer of a conversation is its reference, unless a column holds the references.

    Args:
        guessed: whether the references' column was guessed, which may then hold anything.

    Raises:
        InputError: a column holds something else.
    """
    references = _references(row, columns, where, guessed)
    value = in_json(row[columns.prompt])
    if not is_conversation(value):
        return Prompt("", text_at(row, columns.prompt, where), references)
    at = f"{where}, column '{columns.prompt}'"
    messages, answer = split_answer(conversation(value, at))
    if not messages or messages[-1]["role"] in ("system", "developer"):
        raise InputError(f"{at}: expected a message to answer, of the user or a tool; got {value!r:.200}")
    if answer is not None and answer["content"] and columns.references is None and not columns.has_none:
        references = (str(answer["content"]),)
    meta: dict[str, Any] = {MESSAGES: messages}
    if columns.tools is not None and (tools := tools_of(row.get(columns.tools), where)):
        meta[TOOLS] = tools
    return Prompt("", text_of(messages), references, meta)


def split_answer(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], Message | None]:
    """Return what comes before the assistant's last message, and that message; None without one."""
    kept = [dict(message) for message in messages]
    if kept and kept[-1]["role"] == "assistant":
        return kept[:-1], kept[-1]
    return kept, None


def _references(row: Mapping[str, Any], columns: Columns, where: str, guessed: bool) -> tuple[str, ...]:
    if columns.references is None:
        return ()
    value = in_json(row[columns.references])
    if is_conversation(value):
        _, answer = split_answer(conversation(value, f"{where}, column '{columns.references}'"))
        return () if answer is None else (str(answer["content"]),)
    texts = [of_number(each) for each in (value if isinstance(value, list) else [value])]
    if all(isinstance(text, str) for text in texts):
        return tuple(texts)
    return () if guessed else texts_at(row, columns.references, where)


def in_json(value: Any) -> Any:
    """Return the conversation in a text of JSON, as some tables hold it; any other value as it is.

    >>> in_json('[{"role": "user", "content": "Hi!"}]'), in_json("[1] is a list")
    ([{'role': 'user', 'content': 'Hi!'}], '[1] is a list')
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if is_conversation(found) else value


def tools_of(value: Any, where: str) -> list[Any]:
    """Return the tools in a column, which may be JSON in a text.

    Raises:
        InputError: they are no list.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise InputError(f"{where}, column '{TOOLS}': expected JSON, got {value!r:.200}") from None
    if value is None or isinstance(value, list):
        return [without_nulls(each) for each in value or ()]
    raise InputError(f"{where}, column '{TOOLS}': expected a list of JSON schemas, got {value!r:.200}")


def of_number(value: Any) -> Any:
    """Return a number as its text, as answers of mathematical problems often are; others as they are.

    >>> of_number(3), of_number(0.5), of_number("007"), of_number(True)
    ('3', '0.5', '007', True)
    """
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
