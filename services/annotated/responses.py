"""Responses for `whetstone annotate`, from the user's own rows or from a task.

prompt + response             one response, good unless a column `good` says no; or a list of responses,
                              ranked from the best, of which the best is good
prompt + chosen + rejected    two responses, the better one first; the rejected one is not good
a task                        the task's responses, see services/tasks/responses.py

Prompts and responses are texts or lists of messages. Responses may be whole conversations, whose beginning is
the prompt; a conversation under `messages` is a prompt and its response.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from pydantic import Field, field_validator

from contracts.conversations.messages import is_conversation
from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from contracts.settings import Settings, Strings
from services.tasks.base import CountsLeftOut, Side, Split, Task
from services.tasks.columns import in_json
from services.tasks.files import DataFiles, expect_files, from_files, from_hub
from services.tasks.preferences import Conversed, conversed
from services.tasks.responses import ResponseRow, responses_of
from services.tasks.rows import text_at, texts_at

EXPECTED = "expected prompt and response, or prompt, chosen and rejected"
CONVERSATIONS = ("messages", "conversations")  # columns of whole conversations, the last answer included
EQUAL = "prompts whose chosen and rejected responses are equal"


class ResponseData(Settings):
    """Source of the rows, and names of their columns."""

    files: DataFiles | None = None  # a folder with train/validation/test, a mapping of splits, or one file
    path: str = ""  # or a data set's name on the hub
    subset: str | None = None
    revision: str | None = None
    prompt: str = "prompt"  # where there is no such column, the beginning of the conversations in the others
    response: str = "response"
    chosen: str = "chosen"
    rejected: str = "rejected"
    good: str = "good"  # true or false, beside a response; all are good where there is no such column
    group: str = "group"  # the same for responses ranked together; without this column, the prompt's text
    references_column: str | None = None  # a text or a list of texts for rewards to compare with
    meta_columns: Strings = ()  # further columns for rewards
    truncation_side: Side = "left"  # the side on which prompts beyond rollout.max_prompt_tokens are cut
    max_rows: int | None = Field(default=None, ge=1)  # of each split; None: all
    skip_empty: bool = False  # leave out empty prompts and responses, instead of refusing them

    _files = field_validator("files", mode="before")(expect_files)


@dataclass
class Responses:
    """Responses of one split, and the number left out for each reason."""

    rows: list[ResponseRow] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def read_responses(data: ResponseData, task: Task | None, split: Split) -> Responses:
    """Read the responses of one split; a split that the source lacks takes prompts out of its train split.

    Raises:
        InputError: a row is malformed (the message names its file and line, or its number), texts are empty,
            or no response is left.
    """
    found = Responses()
    rows = _of_columns(data, split) if task is None else _by_prompt(responses_of(task, split))
    for of_prompt in rows:
        # Equal good responses do no harm. But if both responses of a pair are equal, none was preferred.
        if len({row.response for row in of_prompt}) < len({row.is_good for row in of_prompt}):
            found.skipped[EQUAL] += 1
            continue
        for row in of_prompt:
            if not row.prompt.text.strip():
                found.skipped["empty prompts"] += 1
            elif not row.response.strip():
                found.skipped["empty responses"] += 1
            else:
                found.rows.append(row)
    found.skipped.update(task.left_out(split) if isinstance(task, CountsLeftOut) else {})
    if not found.rows:
        raise InputError(f"data: {split} has no usable response; left out: {dict(found.skipped) or 'none'}")
    _refuse_empty(data, found, split)
    return found


def _refuse_empty(data: ResponseData, found: Responses, split: Split) -> None:
    counts = [f"{count} {what}" for what, count in found.skipped.items() if what.startswith("empty")]
    if counts and not data.skip_empty:
        raise InputError(
            f"data: {split} has {' and '.join(counts)}, beside {len(found.rows)} responses that can be used; "
            "data.skip_empty=true leaves them out"
        )


def _by_prompt(rows: Iterable[ResponseRow]) -> Iterable[list[ResponseRow]]:
    """Group a task's responses by prompt; those of one prompt must follow each other."""
    return (list(of_prompt) for _, of_prompt in groupby(rows, key=lambda row: row.group))


def _of_columns(data: ResponseData, split: Split) -> Iterable[list[ResponseRow]]:
    """Yield the responses of each row; rows of one prompt have the same group."""

    def check(row: Mapping[str, Any], where: str) -> None:
        _texts(data, row, where)

    groups: dict[Any, int] = {}
    sizes: Counter[int] = Counter()
    for number, row in enumerate(_rows(data, split, check)):
        if data.max_rows is not None and number >= data.max_rows:
            return
        where = f"data: {split} row {number}"
        prompt = _prompt(data, row, f"data/{split}/{number}", where)
        key = row[data.group] if row.get(data.group) is not None else prompt.text
        group = groups.setdefault(key, len(groups))
        texts = _texts(data, row, where)
        yield [
            ResponseRow(prompt, text, group, is_good=good, order=sizes[group] + place)
            for place, (text, good) in enumerate(texts)
        ]
        sizes[group] += len(texts)


def _rows(data: ResponseData, split: Split, check: Any) -> Any:
    columns = [*filter(None, [data.references_column]), *data.meta_columns]

    def by(row: Mapping[str, Any]) -> str:
        return _read(data, row, "").prompt.text

    try:
        if data.files is not None:
            return from_files(data.files, split, columns, check, by=by)
        return from_hub(data.path, split, columns, subset=data.subset, revision=data.revision, by=by)
    except InputError as error:
        told = str(error).replace("task.data_files", "data.files")
        raise InputError(
            told.replace("task.revision", "data.revision").replace("task.path", "data.path")
        ) from None


def _prompt(data: ResponseData, row: Mapping[str, Any], name: str, where: str) -> Prompt:
    prompt = replace(_read(data, row, where).prompt, id=name)
    if data.references_column is not None:
        prompt = replace(prompt, references=texts_at(row, data.references_column, where))
    return replace(prompt, meta={column: row[column] for column in data.meta_columns} | dict(prompt.meta))


def _texts(data: ResponseData, row: Mapping[str, Any], where: str) -> list[tuple[str, bool]]:
    """Return pairs for the row's responses, the best first: the text, and whether it is good."""
    row = _read(data, row, where).row
    # In a file with both kinds of rows, each row has all columns once it is read.
    chosen, rejected = row.get(data.chosen), row.get(data.rejected)
    if chosen is not None or rejected is not None:
        for column, text in ((data.chosen, chosen), (data.rejected, rejected)):
            text_at({column: text}, column, where)
        return [(str(chosen), True), (str(rejected), False)]
    if row.get(data.response) is None:
        raise InputError(
            f"{where}: {EXPECTED}; {there_are(row, 'columns')}. "
            "A column of another name is given as data.response=NAME, data.chosen=NAME …"
        )
    texts = texts_at(row, data.response, where)
    if isinstance(row[data.response], list):
        return [(text, place == 0) for place, text in enumerate(texts)]
    return [(text, _is_good(row.get(data.good), f"{where}: column '{data.good}'")) for text in texts]


def _read(data: ResponseData, row: Mapping[str, Any], where: str) -> Conversed:
    """Return the row's prompt, and the row with texts in place of conversations."""
    whole = next((name for name in CONVERSATIONS if is_conversation(in_json(row.get(name)))), None)
    if data.prompt not in row and whole is not None:
        row = {**row, data.response: row[whole]}
    return conversed(row, data.prompt, (data.chosen, data.rejected, data.response), where)


def _is_good(value: Any, where: str) -> bool:
    """Parse a truth value, which is a word in CSV; a missing value means true."""
    if value is None or isinstance(value, bool):
        return value is not False
    words = {"true": True, "1": True, "false": False, "0": False}
    if (found := words.get(str(value).lower())) is None:
        raise InputError(f"{where}: expected true or false, got {value!r:.200}")
    return found
