"""Rows of responses whose prompts and responses may be conversations, read as texts beside one prompt."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.messages import (
    Message,
    conversation,
    is_conversation,
    reasoning_of,
    spoken,
    text_of,
    with_one_thought,
)
from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from services.tasks.asked import BEFORE_ANSWERS, Messages, split_answer, whole_prompt
from services.tasks.cells import in_json, is_blank
from services.tasks.columns import PAIRS, Columns, normal
from services.tasks.rows import check_columns, text_at, value_at


@dataclass(frozen=True, slots=True)
class Conversed:
    """A row's prompt, and the row with texts in place of conversations.

    Example: a row of `chosen` and `rejected`, each the question and an answer, has the question as its prompt
    and the two answers' texts in its columns.
    """

    prompt: Prompt  # without an id
    row: Mapping[str, Any]
    answers: Mapping[str, Message]  # by column, where they were messages


def conversed(row: Mapping[str, Any], columns: Columns, responses: Sequence[str], where: str) -> Conversed:
    """Read a row's conversations, and what stands around its prompt.

    Args:
        columns: the prompt's, which may be missing where the responses are whole conversations.
        responses: columns with responses, of which some may be missing.

    Raises:
        InputError: the responses of a row begin differently, or do not end with an answer.
    """
    prompt = columns.prompt
    read = {name: messages_of(value_at(row, name)) for name in (prompt, *responses)}
    found = {
        name: _answered(value, f"{where}, column '{name}'")
        for name, value in read.items()
        if name != prompt and is_conversation(value)
    }
    messages = {name: answer for name, (_, answer) in found.items()}
    answers = {name: spoken(answer) for name, answer in messages.items()}
    said = {*answers.values(), *(read[name] for name in responses if isinstance(read[name], str))}
    asked = _asked(read[prompt], said, f"{where}, column '{prompt}'")
    befores = [before for before, _ in found.values() if before]
    if any(before != befores[0] for before in befores) or not all(_agrees(asked, each) for each in befores):
        raise InputError(
            f"{where}: the conversations in columns {', '.join([prompt, *found])} differ before their "
            f"last answer; expected one prompt with its answers"
        )
    whole: str | Messages | None = befores[0] if befores else asked
    if whole is None:
        _refuse_texts_with_prompts(row, read, where)
        check_columns(row, [prompt], where)
        whole = text_at(row, prompt, where)
    made = whole_prompt(whole, row, columns, where)
    return Conversed(made, {**row, **answers, prompt: made.text}, messages)


def _refuse_texts_with_prompts(row: Mapping[str, Any], read: Mapping[str, Any], where: str) -> None:
    """Refuse a pair of texts that both begin with a prompt which no column holds."""
    texts = [read[name] for name in read if normal(name) in PAIRS and isinstance(read[name], str)]
    if len(texts) == len(PAIRS) and texts[0].split()[:1] == texts[1].split()[:1]:
        raise InputError(
            f"{where}: columns {' and '.join(PAIRS)} are texts that both begin with their prompt, "
            f"{texts[0]!r:.60}…; expected the prompt in a column of its own, or lists of messages; "
            f"{there_are(row, 'columns')}. For Anthropic's dialogues, type whetstone annotate "
            "task=helpful_harmless task.data_files=… reference=MODEL output=FOLDER, then data=FOLDER"
        )


def messages_of(value: Any) -> Any:
    """Return the messages in a text of JSON, or the list of a single message; any other value as it is.

    >>> messages_of({"from": "gpt", "value": "7"})
    [{'from': 'gpt', 'value': '7'}]
    """
    if isinstance(value, Mapping) and is_conversation([value]):
        return [value]
    return in_json(value)


def with_column_thought(message: Message, thought: str, where: str) -> Message:
    """Return the message with a column's thought, once.

    Raises:
        InputError: it has another.
    """
    if reasoning_of(message).strip() not in ("", thought.strip()):
        raise InputError(
            f"{where}: the response has a thought, {reasoning_of(message)!r:.80}, and the column of thoughts "
            f"another, {thought!r:.80}; expected one. data.reasoning='' reads no column of thoughts"
        )
    return with_one_thought({**message, "reasoning_content": thought}, where)


def _asked(value: Any, answers: Collection[str], where: str) -> str | Messages | None:
    """Return the prompt's own column; an answer at its end that is one of the row's is no part of it."""
    if not is_conversation(value):
        return value if isinstance(value, str) and not is_blank(value) else None
    asked, last = split_answer(conversation(value, where))
    if last is not None and spoken(last) not in answers:
        raise InputError(f"{where}: expected a message to answer as the last one, got {value[-1]!r:.200}")
    if not asked or asked[-1]["role"] in BEFORE_ANSWERS:
        raise InputError(f"{where}: expected a message to answer, of the user or a tool; got {value!r:.200}")
    return asked


def _agrees(asked: str | Messages | None, before: Sequence[Message]) -> bool:
    """Return whether a conversation begins with the prompt, or with messages of which it is the last."""
    if asked is None or not isinstance(asked, str):
        return asked is None or list(asked) == list(before)
    said = [text_of(before), text_of([each for each in before if each["role"] not in BEFORE_ANSWERS])]
    return asked.strip() in {each.strip() for each in (*said, text_of(before[-1:]))}


def _answered(value: Any, where: str) -> tuple[Messages, Message]:
    """Return what comes before the last answer, and the answer."""
    before, answer = split_answer(conversation(value, where))
    if answer is None:
        raise InputError(f"{where}: expected an assistant's answer at the end, got {value[-1]!r:.200}")
    if before and all(message["role"] not in ("user", "tool") for message in before):
        raise InputError(f"{where}: expected a message to answer before the last one, got {value!r:.200}")
    return before, answer
