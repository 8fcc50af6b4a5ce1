"""Rows with prompts and responses that may be conversations, read as texts with one prompt."""

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
from services.data.tasks.asked import BEFORE_ANSWERS, Messages, split_answer, whole_prompt
from services.data.tasks.cells import in_json, is_blank
from services.data.tasks.columns import PAIRS, Columns, normal
from services.data.tasks.rows import check_columns, text_at, value_at


@dataclass(frozen=True, slots=True)
class Conversed:
    """A row's prompt, and the row with conversations as texts.

    Example: a row of `chosen` and `rejected`, each a question and an answer, has the question as its prompt
    and the answers' texts in its columns.
    """

    prompt: Prompt  # prompt without an id
    row: Mapping[str, Any]
    answers: Mapping[str, Message]  # messages by column, if the answers were messages


def conversed(row: Mapping[str, Any], columns: Columns, responses: Sequence[str], where: str) -> Conversed:
    """Read a row's conversations, and the other parts of its prompt.

    Args:
        columns: columns of the prompt, which may be missing if the responses are whole conversations.
        responses: columns with responses; some may be missing.

    Raises:
        InputError: a row's responses begin differently, or do not end with an answer.
    """
    prompt = columns.prompt
    read = {
        name: messages_of(value_at(row, name), f"{where}, column '{name}'") for name in (prompt, *responses)
    }
    conversations = {
        name: _answered(value, f"{where}, column '{name}'")
        for name, value in read.items()
        if name != prompt and is_conversation(value)
    }
    messages = {name: answer for name, (_, answer) in conversations.items()}
    answers = {name: spoken(answer) for name, answer in messages.items()}
    texts = {*answers.values(), *(read[name] for name in responses if isinstance(read[name], str))}
    in_column = _asked(read[prompt], texts, f"{where}, column '{prompt}'")
    befores = [before for before, _ in conversations.values() if before]
    if not all(before == befores[0] and _agrees(in_column, before) for before in befores):
        raise InputError(
            f"{where}: the conversations in columns {', '.join([prompt, *conversations])} differ before "
            f"their last answer; expected one prompt with its answers"
        )
    whole: str | Messages | None = befores[0] if befores else in_column
    if whole is None:
        _refuse_texts_with_prompts(row, read, where)
        check_columns(row, [prompt], where)
        whole = text_at(row, prompt, where)
    made = whole_prompt(whole, row, columns, where)
    return Conversed(made, {**row, **answers, prompt: made.text}, messages)


def _refuse_texts_with_prompts(row: Mapping[str, Any], read: Mapping[str, Any], where: str) -> None:
    """Reject a pair of texts that both begin with a prompt which no column holds."""
    texts = [read[name] for name in read if normal(name) in PAIRS and isinstance(read[name], str)]
    if len(texts) == len(PAIRS) and texts[0].split()[:1] == texts[1].split()[:1]:
        raise InputError(
            f"{where}: columns {' and '.join(PAIRS)} are texts that both begin with their prompt, "
            f"{texts[0]!r:.60}…; expected the prompt in a separate column, or lists of messages; "
            f"{there_are(row, 'columns')}. For Anthropic's dialogues, type whetstone annotate "
            "task=helpful_harmless task.data_files=… reference=MODEL output=FOLDER, then data=FOLDER"
        )


def messages_of(value: Any, where: str = "") -> Any:
    """Return the messages in a JSON text, or a list of a single message; return any other value unchanged.

    >>> messages_of({"from": "gpt", "value": "7"})
    [{'from': 'gpt', 'value': '7'}]

    Raises:
        InputError: as `in_json`.
    """
    if isinstance(value, Mapping) and is_conversation([value]):
        return [value]
    return in_json(value, where)


def with_column_thought(message: Message, thought: str, where: str) -> Message:
    """Return the message with the thought from a column, once.

    Raises:
        InputError: the message has another thought.
    """
    if reasoning_of(message).strip() not in ("", thought.strip()):
        raise InputError(
            f"{where}: the response has a thought, {reasoning_of(message)!r:.80}, but its column "
            f"has {thought!r:.80}; expected one. data.reasoning='' reads no column of thoughts"
        )
    return with_one_thought({**message, "reasoning_content": thought}, where)


def _asked(value: Any, answers: Collection[str], where: str) -> str | Messages | None:
    """Return the prompt in its column, without an answer at its end that is one of the row's answers."""
    if not is_conversation(value):
        return value if isinstance(value, str) and not is_blank(value) else None
    messages, last = split_answer(conversation(value, where))
    if last is not None and spoken(last) not in answers:
        raise InputError(f"{where}: expected a message to answer at the end, got {value[-1]!r:.200}")
    if not messages or messages[-1]["role"] in BEFORE_ANSWERS:
        raise InputError(f"{where}: expected a message to answer, of the user or a tool; got {value!r:.200}")
    return messages


def _agrees(prompt: str | Messages | None, before: Sequence[Message]) -> bool:
    """Tell whether the prompt fits the messages before the answer: all of them, or the last one."""
    if prompt is None or not isinstance(prompt, str):
        return prompt is None or list(prompt) == list(before)
    texts = [
        text_of(before),
        text_of([message for message in before if message["role"] not in BEFORE_ANSWERS]),
    ]
    return prompt.strip() in {text.strip() for text in (*texts, text_of(before[-1:]))}


def _answered(value: Any, where: str) -> tuple[Messages, Message]:
    """Return the messages before the last answer, and the answer."""
    before, answer = split_answer(conversation(value, where))
    if answer is None:
        raise InputError(f"{where}: expected an assistant's answer at the end, got {value[-1]!r:.200}")
    if before and all(message["role"] not in ("user", "tool") for message in before):
        raise InputError(f"{where}: expected a message to answer before the last one, got {value!r:.200}")
    return before, answer
