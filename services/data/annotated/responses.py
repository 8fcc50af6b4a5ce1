"""Responses for `whetstone annotate`, from the user's own rows or from a task.

prompt + response             one response, good unless a column `good` says no; or a list of responses,
                              ranked from the best, which alone is good
prompt + chosen + rejected    two responses, the better one first; the rejected one is not good
a task                        the task's responses, see services/data/tasks/responses.py

Prompts and responses are texts or lists of messages. Responses may be whole conversations that begin with the
prompt. A conversation under `messages` is a prompt and its response.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

from contracts.conversations.messages import RESPONSE, Message, response_meta, spoken
from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from services.data.annotated.row_columns import (
    RESPONSES,
    ResponseColumns,
    ResponseData,
    columns_read,
    response_columns,
)
from services.data.tasks.asked import is_good, references_at
from services.data.tasks.base import ColumnRead, CountsLeftOut, Split, Task, TellsColumns
from services.data.tasks.cells import as_text, is_blank
from services.data.tasks.columns import named
from services.data.tasks.file_rows import FileRows
from services.data.tasks.files import examples_of, from_files, from_hub
from services.data.tasks.preferences import Conversed, conversed, messages_of, with_column_thought
from services.data.tasks.responses import ResponseRow, behind, responses_of
from services.data.tasks.rows import check_columns, has_column, text_at, texts_at, value_at

EXPECTED = "expected prompt and response, or prompt, chosen and rejected"
EQUAL = "prompts whose chosen and rejected responses are equal"


@dataclass
class Responses:
    """Responses of one split, and the number left out for each reason."""

    rows: list[ResponseRow] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    columns: Sequence[ColumnRead] = ()
    without_prompts: bool = False  # every response began with its prompt, which was removed


def read_responses(data: ResponseData, task: Task | None, split: Split) -> Responses:
    """Read the responses of one split; a missing split takes prompts out of the train split.

    Raises:
        InputError: a row is malformed (the message names its file and line, or its number), texts are empty,
            or no response is left.
    """
    responses = Responses()
    if task is not None:
        of_prompts = _by_prompt(responses_of(task, split))
        responses.columns = task.columns_read(split) if isinstance(task, TellsColumns) else ()
    else:
        rows, columns, responses.columns = rows_of(data, split)
        of_prompts = _of_columns(data, split, rows, columns)
    for of_prompt in of_prompts:
        # Equal good responses are harmless. But if both responses of a pair are equal, none was preferred.
        distinct = {(row.response, str(row.prompt.meta.get(RESPONSE))) for row in of_prompt}
        is_empty = not any(row.response.strip() for row in of_prompt)
        if len(distinct) < len({row.is_good for row in of_prompt}) and not is_empty:
            responses.skipped[EQUAL] += 1
            continue
        for row in of_prompt:
            if not row.prompt.text.strip():
                responses.skipped["empty prompts"] += 1
            elif not row.response.strip():
                responses.skipped["empty responses"] += 1
            else:
                responses.rows.append(row)
    responses.skipped.update(task.left_out(split) if isinstance(task, CountsLeftOut) else {})
    if not responses.rows:
        raise InputError(
            f"data: {split} has no usable response; left out: {dict(responses.skipped) or 'none'}"
        )
    if task is None and all(map(_begins_with_prompt, responses.rows)):
        responses.rows = [replace(row, response=behind(row.prompt, row.response)) for row in responses.rows]
        responses.without_prompts = True
    _refuse_empty(data, responses, split)
    return responses


def _begins_with_prompt(row: ResponseRow) -> bool:
    return (
        not row.prompt.messages
        and bool(behind(row.prompt, row.response).strip())
        and (row.response.startswith(row.prompt.text))
    )


def _refuse_empty(data: ResponseData, responses: Responses, split: Split) -> None:
    counts = [f"{count} {what}" for what, count in responses.skipped.items() if what.startswith("empty")]
    if counts and not data.skip_empty:
        raise InputError(
            f"data: {split} has {' and '.join(counts)}, and {len(responses.rows)} usable responses; "
            "data.skip_empty=true leaves the empty ones out"
        )


def _by_prompt(rows: Iterable[ResponseRow]) -> Iterable[list[ResponseRow]]:
    """Group a task's responses by prompt. Responses to one prompt must be next to each other."""
    return (list(of_prompt) for _, of_prompt in groupby(rows, key=lambda row: row.group))


def _of_columns(
    data: ResponseData, split: Split, rows: Any, columns: ResponseColumns
) -> Iterable[list[ResponseRow]]:
    """Yield the responses of each row; rows of one prompt have the same group."""
    groups: dict[Any, int] = {}
    sizes: Counter[int] = Counter()
    for number, row in enumerate(rows):
        if data.max_rows is not None and number >= data.max_rows:
            return
        where = f"data: {split} row {number}"
        if isinstance(rows, FileRows):
            where = rows.where(number).replace("task.data_files", "data.files")
        row_prompt, answers = _read(columns, row, where)
        prompt = _prompt(data, row_prompt, row, f"data/{split}/{number}", where)
        key = prompt.text if is_blank(row.get(data.group)) else row[data.group]
        group = groups.setdefault(key, len(groups))
        yield [
            ResponseRow(
                answer.beside(prompt), answer.text, group, is_good=answer.is_good, order=sizes[group] + place
            )
            for place, answer in enumerate(answers)
        ]
        sizes[group] += len(answers)


def rows_of(data: ResponseData, split: Split) -> tuple[Any, ResponseColumns, list[ColumnRead]]:
    """Return the rows of one split, the columns to read, and the role of each column.

    Raises:
        InputError: the rows can't be read, or lack a column that is set.
    """

    def read_rows(by: Callable[[Mapping[str, Any]], str] | None) -> Any:
        if data.files is not None:
            return from_files(data.files, split, (), lambda row, where: None, by=by)
        return from_hub(data.path, split, (), subset=data.subset, revision=data.revision, by=by)

    try:
        examples = examples_of(read_rows(None))
        check_columns(examples, data.given, f"data: {split}")
        columns = response_columns(data, examples, f"data: {split}")
        return read_rows(partial(_dealt_by, columns)), columns, columns_read(data, columns, examples)
    except InputError as error:
        message = str(error).replace("task.data_files", "data.files")
        raise InputError(
            message.replace("task.revision", "data.revision").replace("task.path", "data.path")
        ) from None


def _dealt_by(columns: ResponseColumns, row: Mapping[str, Any]) -> str:
    """Return the prompt, whose rows stay in one split; "" for a row that reading will reject."""
    try:
        return _read(columns, row, "")[0].text
    except InputError:
        return ""


def _prompt(data: ResponseData, prompt: Prompt, row: Mapping[str, Any], name: str, where: str) -> Prompt:
    meta = {column: value_at(row, column) for column in data.meta_columns} | dict(prompt.meta)
    references: tuple[str, ...] = ()
    if data.references_column is not None:
        references = references_at(row, data.references_column, where)
    return replace(prompt, id=name, meta=meta, references=references)


@dataclass(frozen=True, slots=True)
class _Response:
    """One response of a row. Example: `_Response("It is seven.")`"""

    text: str
    is_good: bool = True
    message: Message | None = None  # the message, if it is more than a text

    def beside(self, prompt: Prompt) -> Prompt:
        """Return the prompt with the response's message in its meta data, if it is more than a text."""
        meta = {} if self.message is None else response_meta(self.message)
        return replace(prompt, meta={**prompt.meta, **meta}) if meta else prompt


def _read(columns: ResponseColumns, row: Mapping[str, Any], where: str) -> tuple[Prompt, list[_Response]]:
    """Return the row's prompt and its responses, the best first."""
    row = _laid_out(row, columns)
    prompt, names = columns.prompt_columns.prompt, (columns.chosen, columns.rejected, columns.response)
    has_nulls = any(has_column(row, name) for name in names) and all(
        value_at(row, name) is None for name in names
    )
    if value_at(row, prompt) is None and (has_column(row, prompt) or has_nulls):
        row = {**row, prompt: ""}
    read = conversed(row, columns.prompt_columns, names, where)
    return read.prompt, _responses(read, columns, where)


def _responses(read: Conversed, columns: ResponseColumns, where: str) -> list[_Response]:
    row, answers = read.row, read.answers
    # After reading, each row has all columns of its file, even if the file mixes both kinds of rows.
    pair = value_at(row, columns.chosen), value_at(row, columns.rejected)
    response = value_at(row, columns.response)
    if not all(map(is_blank, pair)) or (pair != (None, None) and response is None):
        return [
            _Response(_text(row, column, value_at(row, column), where), is_good, answers.get(column))
            for column, is_good in ((columns.chosen, True), (columns.rejected, False))
        ]
    has_columns = has_column(row, columns.response) or has_column(row, columns.chosen)
    if response is None and (
        not has_columns or any(not is_blank(row[name]) for name in named(row, RESPONSES))
    ):
        raise InputError(
            f"{where}: {EXPECTED}; {there_are(row, 'columns')}. "
            "If a column has another name, give it as data.response=NAME, data.chosen=NAME …"
        )
    if response is None and not has_column(row, columns.response):  # a pair of nulls
        return [_Response(""), _Response("", False)]
    good = columns.good is None or is_good(row, columns.good, where, "data.good='' makes all responses good")
    thought = "" if columns.reasoning is None else value_at(row, columns.reasoning)
    if isinstance(response, list):
        _refuse_beside_ranking(row, columns, where)
        texts = texts_at({columns.response: response}, columns.response, where)
        return [_Response(text, place == 0) for place, text in enumerate(texts)]
    text = _text(row, columns.response, as_text(response), where)
    message = answers.get(columns.response)
    if not is_blank(thought):
        message = with_column_thought(message or {"role": "assistant", "content": text}, str(thought), where)
        text = spoken(message)
    return [_Response(text, good, message)]


def _text(row: Mapping[str, Any], column: str, value: Any, where: str) -> str:
    """Return a response's text; "" for a null in a column that the data have."""
    return "" if value is None and has_column(row, column) else text_at({column: value}, column, where)


def _refuse_beside_ranking(row: Mapping[str, Any], columns: ResponseColumns, where: str) -> None:
    for name in (columns.good, columns.reasoning):
        if name is not None and not is_blank(value_at(row, name)):
            raise InputError(
                f"{where}: column '{columns.response}' ranks several responses, and column '{name}' is about "
                f"one; expected one response in each row, or no column '{name}'"
            )


def _laid_out(row: Mapping[str, Any], columns: ResponseColumns) -> Mapping[str, Any]:
    """Return the row with a whole conversation in the columns where it belongs."""
    if columns.whole is None:
        return row
    whole, rejected = messages_of(value_at(row, columns.whole)), messages_of(value_at(row, columns.rejected))
    if not is_blank(value_at(row, columns.chosen)):
        return {**row, columns.prompt_columns.prompt: whole}
    if is_blank(rejected):
        return {**row, columns.response: whole}
    if isinstance(rejected, str):  # ms-swift: only the rejected last answer
        rejected = [*whole[:-1], {"role": "assistant", "content": rejected}]
    return {**row, columns.chosen: whole, columns.rejected: rejected}
