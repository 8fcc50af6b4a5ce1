"""Columns of rows with responses: columns that the user sets, otherwise known names of other programs.

option | columns where `data.NAME` is not given
--- | ---
`prompt` | `prompt`, `question`, `problem`, `instruction`, `query`, `input`
`response` | `response`, `completion` (TRL), `output` (Alpaca), `answer`, `solution`
`rejected` | `rejected`, `rejected_response` (ms-swift), beside `chosen` or whole `messages`
`good` | `good`, `label` (TRL), `kto_tag` (LLaMA-Factory)
`reasoning` | `reasoning_content`, `reasoning`, `thinking`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, field_validator

from contracts.conversations.messages import REASONING, is_conversation
from contracts.errors import InputError
from contracts.settings import Settings, Strings
from services.data.tasks.base import ColumnRead, Side
from services.data.tasks.cells import is_blank, refuse_printed
from services.data.tasks.columns import (
    IS_GOOD,
    OTHER_PROMPTS,
    PROMPTS,
    THOUGHTS,
    Columns,
    columns_of,
    is_good_column,
    named,
    reads,
)
from services.data.tasks.files import DataFiles, expect_files
from services.data.tasks.preferences import messages_of
from services.data.tasks.rows import value_at

CONVERSATIONS = ("messages", "conversations")  # columns of whole conversations, including the last answer
QUESTIONS = tuple(name for name in PROMPTS if name not in CONVERSATIONS) + OTHER_PROMPTS[:2]
RESPONSES = ("response", "completion", "output", "answer", "solution")
NAMED = ("prompt", "response", "chosen", "rejected", "good", "group", "system", "input", "reasoning")


class ResponseData(Settings):
    """Source of the rows, and names of their columns."""

    files: DataFiles | None = None  # a folder with train/validation/test, a mapping of splits, or one file
    path: str = ""  # data set's name on the hub, instead of files
    subset: str | None = None  # subset of a data set on the hub
    revision: str | None = None  # its branch, tag or commit
    prompt: str = "prompt"  # prompt's column; without it, the beginning of the conversations in the others
    response: str = "response"  # column of the response
    chosen: str = "chosen"  # column of the better response
    rejected: str = "rejected"  # column of the worse response
    good: str = "good"  # true or false for each response; all are good if there is no such column, or for ""
    group: str = "group"  # the same for responses ranked together; without this column, the prompt's text
    system: str | None = None  # a system message before the prompt. None: system, if it is there; "": none
    input: str | None = None  # text after an instruction. None: its input and context; "": none
    reasoning: str | None = None  # the thought before a response. None: reasoning_content, …; "": none
    references_column: str | None = None  # a text or a list of texts for rewards to compare with
    meta_columns: Strings = ()  # further columns for rewards
    truncation_side: Side = "left"  # the side on which prompts beyond rollout.max_prompt_tokens are cut
    max_rows: int | None = Field(default=None, ge=1)  # most rows of each split; None: all
    skip_empty: bool = False  # leave out empty prompts and responses, instead of rejecting them

    _files = field_validator("files", mode="before")(expect_files)

    @property
    def given(self) -> list[str]:
        """Columns that are set, which the data must have."""
        names = [getattr(self, name) for name in NAMED if name in self.model_fields_set]
        return [name for name in (*names, self.references_column, *self.meta_columns) if name]


@dataclass(frozen=True, slots=True)
class ResponseColumns:
    """Columns of rows with responses.

    Example: of TRL's rows for KTO, `ResponseColumns(Columns("prompt"), "completion", good="label")`.
    """

    prompt_columns: Columns
    response: str
    chosen: str = "chosen"
    rejected: str = "rejected"
    good: str | None = None
    group: str = "group"
    reasoning: str | None = None
    whole: str | None = None  # whole conversations, if no column holds only the prompt or the response
    is_pair: bool = False  # whether some rows have a pair; in these no response, thought or `good` is read

    @property
    def roles(self) -> dict[str, str]:
        """Return the role of each column."""
        alone = ", in rows without a pair" if self.is_pair else ""
        roles = {
            **({self.response: f"response{alone}"} if self.whole is None else {}),
            self.chosen: "response, the better one of a pair",
            self.rejected: "response, the worse one of a pair",
            self.group: "the same for responses ranked together",
        }
        for name, role in (
            (self.good, f"says whether the response is good{alone}"),
            (self.reasoning, f"thought before the response{alone}"),
            (self.whole, "prompt and response"),
        ):
            roles |= {name: role} if name is not None else {}
        return roles | self.prompt_columns.roles | ({self.whole: "prompt and response"} if self.whole else {})


def response_columns(data: ResponseData, row: Mapping[str, Any], where: str) -> ResponseColumns:
    """Return the columns to read.

    Args:
        row: a value of each column.

        Raises:
        InputError: several columns may hold the response, or it is unclear whether a column marks good ones.
    """
    there = {name: value for name, value in row.items() if value is not None}
    prompt = _picked(data, "prompt", there, QUESTIONS)
    chosen = _picked(data, "chosen", there, ("chosen",))
    rejected = _picked(data, "rejected", there, ("rejected", "rejected_response"))
    is_pair = _has(there, chosen)
    response = _response(data, there, prompt, where, is_pair=is_pair)
    messages = [] if _has(there, prompt) else named(there, CONVERSATIONS)
    if "prompt" in data.model_fields_set and not is_pair and not _has(there, response):
        messages = [prompt]  # such as data.prompt=messages beside a column `prompt`
    whole = _whole(messages, there, where)
    is_asked = prompt if _has(there, prompt) else whole
    prompt_columns = Columns(prompt)
    if (begins := is_asked or (chosen if is_pair else None)) is not None:
        around = data.system, data.input
        prompt_columns = columns_of(
            list(row), begins, "", where, examples=row, system=around[0], beside=around[1]
        )
    return ResponseColumns(
        prompt_columns=replace(prompt_columns, prompt=prompt, rejected=None, is_good=None),
        response=response,
        chosen=chosen,
        rejected=rejected,
        good=_good(data, there, where, is_pair=is_pair),
        group=data.group,
        reasoning=_reasoning(data, there),
        whole=whole,
        is_pair=is_pair,
    )


def _whole(names: Sequence[str], there: Mapping[str, Any], where: str) -> str | None:
    """Return the first of these columns that holds conversations."""
    for name in names:
        value = value_at(there, name)
        if is_conversation(messages_of(value)):
            return name
        refuse_printed(value, f"{where}, column '{name}'")
    return None


def columns_read(
    data: ResponseData, columns: ResponseColumns, examples: Mapping[str, Any]
) -> list[ColumnRead]:
    """Return each column of the data with its role.

    Args:
        examples: a value of each column.
    """
    roles = {name: role for name, role in columns.roles.items() if _has(examples, name)}
    for names, role in ((data.meta_columns, "meta data of rewards"), ([data.references_column], "reference")):
        roles |= {name: ", ".join(filter(None, [roles.get(name), role])) for name in names if name}
    thoughts = named(examples, THOUGHTS) if data.reasoning is None else []
    return reads(
        roles, examples, {name: f"data.reasoning={name} puts it before the response" for name in thoughts}
    )


def _has(there: Mapping[str, Any], name: str) -> bool:
    return name in there or not is_blank(value_at(there, name))


def _picked(data: ResponseData, option: str, there: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the column that is set, otherwise the first known name in the data."""
    column: str = getattr(data, option)
    if option in data.model_fields_set or column in there:
        return column
    return next(iter(named(there, names)), column)


def _response(data: ResponseData, there: Mapping[str, Any], prompt: str, where: str, *, is_pair: bool) -> str:
    if "response" in data.model_fields_set or data.response in there:
        return data.response
    names = [name for name in named(there, RESPONSES) if name not in (prompt, data.references_column)]
    if len(names) > 1 and is_pair:  # reading rejects a row with neither
        return data.response
    if len(names) > 1:
        raise InputError(
            f"{where}: columns {' and '.join(names)} may hold the response: give data.response={names[0]}"
        )
    return names[0] if names else data.response


def _good(data: ResponseData, there: Mapping[str, Any], where: str, *, is_pair: bool) -> str | None:
    if "good" in data.model_fields_set:
        return data.good or None
    if (column := is_good_column(there)) is not None:
        return column
    unsure = [name for name in named(there, IS_GOOD) if not is_blank(there[name])]
    if unsure and not is_pair and not {data.references_column, data.group, *data.meta_columns} & set(unsure):
        name = unsure[0]
        raise InputError(
            f"{where}: column '{name}' holds {there[name]!r:.80}; expected true or false, whether the "
            f"response is good. data.good={name} reads 1 and 0; data.good='' makes all responses good"
        )
    return None


def _reasoning(data: ResponseData, there: Mapping[str, Any]) -> str | None:
    if data.reasoning is not None:
        return data.reasoning or None
    names = [name for name in named(there, REASONING) if name not in data.meta_columns]
    return names[0] if names else None
