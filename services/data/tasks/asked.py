"""A row's prompt: its text or messages, with the other columns' parts of the prompt, and its references."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contracts.conversations.called_tools import without_nulls
from contracts.conversations.messages import (
    MESSAGES,
    TOOLS,
    Message,
    conversation,
    is_conversation,
    response_meta,
    spoken,
    text_of,
)
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.cells import as_text, in_json, is_blank, truth_of
from services.data.tasks.columns import PAIRS, Columns, is_pair, normal
from services.data.tasks.rows import text_at, texts_at, value_at

Messages = list[dict[str, Any]]
BEFORE_ANSWERS = ("system", "developer")  # roles whose messages get no answer


def prompt_at(row: Mapping[str, Any], columns: Columns, where: str, *, guessed: bool = False) -> Prompt:
    """Return a row's prompt without an id: a text or a conversation, with references and tools.

    The last answer of a conversation is its reference, unless a column holds references. The prompt of a
    pair of whole conversations is their common beginning.

    Args:
        guessed: whether the references' column was guessed, and may hold anything.

    Raises:
        InputError: a column holds a wrong value.
    """
    references: tuple[str, ...] = ()
    answer: Message | None = None
    if columns.references is not None:
        references = references_at(row, columns.references, where, guessed=guessed)
        answer = _last_answer(in_json(value_at(row, columns.references)), where)
    at = f"{where}, column '{columns.prompt}'"
    value = in_json(value_at(row, columns.prompt), at)
    prompt: str | Messages
    if is_conversation(value):
        prompt, last = _before_answer(conversation(value, at), row, columns, where)
        if not prompt or prompt[-1]["role"] in BEFORE_ANSWERS:
            raise InputError(f"{at}: expected a message to answer, of the user or a tool; got {value!r:.200}")
        if last is not None and columns.references is None and not columns.has_none:
            references, answer = (_text(last),) if _text(last) else (), last
    else:
        if normal(columns.prompt) in PAIRS and isinstance(value, str):
            raise InputError(
                f"{at}: a text that begins with its prompt, got {value!r:.80}; expected a column 'prompt', "
                "too, or lists of messages. task=helpful_harmless reads dialogues in texts"
            )
        prompt = text_at(row, columns.prompt, where)
    if columns.is_good is not None and references:
        remedy = f"task.meta_columns=[{columns.is_good}] keeps the column for rewards only"
        references = references if is_good(row, columns.is_good, where, remedy) else ()
    made = whole_prompt(prompt, row, columns, where, references)
    if answer is None or not references:
        return made
    return replace(made, meta={**made.meta, **response_meta(answer)})


def whole_prompt(
    prompt: str | Messages,
    row: Mapping[str, Any],
    columns: Columns,
    where: str,
    references: Sequence[str] = (),
) -> Prompt:
    """Return the prompt, without an id, with the row's other parts of the prompt.

    An instruction's input follows the instruction. Earlier turns, a system message and tools turn a text into
    messages.

    Raises:
        InputError: a column holds a wrong value, or there is a second system message.
    """
    behind = [_piece(row, name, where) for name in columns.beside if not is_blank(value_at(row, name))]
    if behind and not isinstance(prompt, str):
        raise InputError(
            f"{where}: column '{columns.beside[0]}' belongs after the text of an instruction, but column "
            f"'{columns.prompt}' holds messages; expected one of the two"
        )
    if behind:
        prompt = "\n\n".join([str(prompt), *behind])
    turns, system = _turns(row, columns, where), _system(row, columns, prompt, where)
    tools = [] if columns.tools is None else tools_of(value_at(row, columns.tools), where)
    if isinstance(prompt, str):
        if not turns and not system and not tools:
            return Prompt("", prompt, tuple(references))
        prompt = [{"role": "user", "content": prompt}]
    num_first = sum(message["role"] in BEFORE_ANSWERS for message in prompt[:1])
    messages = [*system, *prompt[:num_first], *turns, *prompt[num_first:]]
    return Prompt(
        "", text_of(messages), tuple(references), {MESSAGES: messages} | ({TOOLS: tools} if tools else {})
    )


def split_answer(messages: Sequence[Message]) -> tuple[Messages, Message | None]:
    """Return the messages before the assistant's last message, and that message, or None."""
    kept = [dict(message) for message in messages]
    if kept and kept[-1]["role"] == "assistant":
        return kept[:-1], kept[-1]
    return kept, None


def tools_of(value: Any, where: str) -> list[Any]:
    """Return the tools in a column, which may be a JSON text.

    Raises:
        InputError: the tools are not JSON, or not a list.
    """
    if is_blank(value):
        return []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise InputError(f"{where}, column '{TOOLS}': expected JSON, got {value!r:.200}") from None
    if value is None or isinstance(value, list):
        return [without_nulls(tool) for tool in value or ()]
    raise InputError(f"{where}, column '{TOOLS}': expected a list of JSON schemas, got {value!r:.200}")


def is_good(row: Mapping[str, Any], column: str, where: str, remedy: str) -> bool:
    """Return whether a row's response is good. A blank cell means yes.

    Args:
        remedy: for the message: how to leave the column out.

    Raises:
        InputError: the column holds no truth value.
    """
    value = value_at(row, column)
    if is_blank(value):
        return True
    if (truth := truth_of(value)) is None:
        raise InputError(
            f"{where}: expected true or false in column '{column}', got {value!r:.200}. {remedy}"
        )
    return truth


def _before_answer(
    messages: Messages, row: Mapping[str, Any], columns: Columns, where: str
) -> tuple[Messages, Message | None]:
    """Return the messages to answer, and the good answer, or None."""
    at = f"{where}, column '{columns.rejected}'"
    other = None if columns.rejected is None else in_json(value_at(row, columns.rejected), at)
    if is_blank(other):
        before, answer = split_answer(messages)
        is_bad = normal(columns.prompt) == "rejected"
        return before, None if is_bad else answer
    pair = [messages, conversation(other, at)]
    num_same = next((n for n, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
    if pair[0] == pair[1]:
        num_same -= 1
    rests = [talk[num_same:] for talk in pair]
    if any(not rest or rest[0]["role"] != "assistant" for rest in rests):
        raise InputError(
            f"{where}: the conversations in columns {columns.prompt}, {columns.rejected} differ before their "
            f"last answer; expected one prompt with its answers"
        )
    chosen = rests[0 if normal(columns.prompt) == "chosen" else 1]
    return messages[:num_same], chosen[0] if len(chosen) == 1 else None


def references_at(
    row: Mapping[str, Any], column: str, where: str, *, guessed: bool = False
) -> tuple[str, ...]:
    """Return the references in a column: texts, numbers, lists of these, or a conversation's last answer.

    Args:
        guessed: whether the column was guessed, and may hold anything.

    Raises:
        InputError: the column holds a wrong value.
    """
    value = in_json(value_at(row, column), f"{where}, column '{column}'")
    if is_conversation(value):
        answer = _last_answer(value, f"{where}, column '{column}'")
        return () if answer is None else (_text(answer),)
    texts = [as_text(inner) for inner in (value if isinstance(value, list) else [value])]
    if all(isinstance(text, str) for text in texts):
        return tuple(texts)
    return () if guessed else texts_at(row, column, where)


def _last_answer(value: Any, where: str) -> Message | None:
    return split_answer(conversation(value, where))[1] if is_conversation(value) else None


def _text(answer: Message) -> str:
    """Return the text to compare with answers: the content, or the calls of an answer without content."""
    return str(answer["content"] or "") or spoken(answer)


def _piece(row: Mapping[str, Any], column: str, where: str) -> str:
    value = as_text(value_at(row, column))
    return str(value) if isinstance(value, str) else text_at(row, column, where)


def _system(row: Mapping[str, Any], columns: Columns, prompt: str | Messages, where: str) -> Messages:
    """Return the row's system message, unless the conversation begins with the same one."""
    if columns.system is None or is_blank(value_at(row, columns.system)):
        return []
    text = text_at(row, columns.system, where)
    first = prompt[0] if not isinstance(prompt, str) and prompt else {"role": "user"}
    if first["role"] not in BEFORE_ANSWERS:
        return [{"role": "system", "content": text}]
    if first["content"] == text:
        return []
    raise InputError(
        f"{where}: column '{columns.system}' has a system message, but the conversation in column "
        f"'{columns.prompt}' begins with another; expected one: {text!r:.80} or {first['content']!r:.80}"
    )


def _turns(row: Mapping[str, Any], columns: Columns, where: str) -> Messages:
    """Return the turns before the prompt: messages, or pairs of a question and its answer."""
    at = f"{where}, column '{columns.history}'"
    if (
        columns.history is None
        or is_blank(value := in_json(value_at(row, columns.history), at))
        or value == []
    ):
        return []
    if is_conversation(value):
        return conversation(value, at)
    if not isinstance(value, list) or not all(map(is_pair, value)):
        raise InputError(
            f"{at}: expected messages, or pairs of a question and its answer, got {value!r:.200}"
        )
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in value for role, text in zip(roles, pair, strict=True)]
