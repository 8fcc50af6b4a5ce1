"""Read the training data of a reward model: rows with labels, rows with pairs, or a task's prompts.

text + label                  a classifier of texts
prompt + response + label     a classifier of responses; reads the prompt before each response
chosen + rejected             a model of preferences; reads a prompt, if present, before both

Lists of messages become texts, with one line a message. A conversation's last answer is the response.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, field_validator

from contracts.conversations.messages import TOOLS, is_conversation
from contracts.errors import InputError, there_are
from contracts.scores import Sample
from contracts.settings import Settings, Strings
from reward_servers.models.intent import Join, utterance_pair
from reward_servers.text.whole_text import whole_text
from services.data.tasks.base import Split, Task
from services.data.tasks.cells import is_blank
from services.data.tasks.columns import Columns, columns_of, not_read, reads
from services.data.tasks.files import DataFiles, examples_of, expect_files, from_files, from_hub
from services.data.tasks.preferences import conversed, messages_of
from services.data.tasks.rows import check_columns, text_at

Objective = Literal["labels", "pairs"]
WHOLE = re.compile(r"-?(0|[1-9]\d*)(\.0+)?")
COLUMNS = ("text", "prompt", "response", "label", "chosen", "rejected", "margin")
EXPECTED = "expected text and label, or prompt, response and label, or chosen and rejected"


class RewardData(Settings):
    """Source of the rows, and names of their columns."""

    files: DataFiles | None = None  # a folder with train/validation/test, a mapping of splits, or one file
    path: str = ""  # a data set's name on the hub, unless files is given
    subset: str | None = None
    revision: str | None = None
    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"
    label: str = "label"  # column with the label; of a task: the key in its prompts' meta data
    chosen: str = "chosen"
    rejected: str = "rejected"
    margin: str | None = None  # column with the size of the preference
    label_names: Strings = ()  # names in the order of the labels; empty: the labels themselves
    join: Literal["whole"] | Join = "whole"  # how to join prompt and response: whole, or the last turn
    max_rows: int | None = Field(default=None, ge=1)  # most rows of each split; None: all
    skip_empty: bool = False  # skip rows without a text instead of rejecting them

    _files = field_validator("files", mode="before")(expect_files)


@dataclass(frozen=True, slots=True)
class RewardRow:
    """Row: one text with its label, or a chosen and a rejected text.

    Example: `RewardRow(("a fine film",), label=1)`, `RewardRow(("Q: … A: yes", "Q: … A: no"), margin=0.0)`
    """

    texts: tuple[str, ...]
    label: int | str = 0
    margin: float = 0.0


@dataclass
class RewardRows:
    """Rows of one split, and counts of the skipped rows by reason."""

    rows: list[RewardRow] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    not_read: Sequence[str] = ()  # a line about unread columns


def read_split(data: RewardData, task: Task | None, objective: Objective | None, split: Split) -> RewardRows:
    """Read the rows of one split; cut a missing split from the train split.

    Raises:
        InputError: a row can't be used; the message names the file, the row and the fault.
    """
    if task is not None:
        to_read: Iterable[RewardRow] = _of_task(data, task, split)
        kept = RewardRows()
    else:
        rows = _rows(data, objective, split)
        to_read = _of_rows(data, objective, split, rows)
        kept = RewardRows(not_read=not_read({"": reads(_roles(data), examples_of(rows))}))
    for row in to_read:
        if any(not text.strip() for text in row.texts):
            kept.skipped["empty"] += 1
        elif len(row.texts) == 2 and row.texts[0] == row.texts[1]:
            kept.skipped["chosen = rejected"] += 1
        else:
            kept.rows.append(row)
    if not kept.rows:
        raise InputError(f"data: {split} has no usable row; left out: {dict(kept.skipped) or 'none'}")
    return kept


def label_places(labels: Sequence[int | str], names: Sequence[str]) -> tuple[dict[int | str, int], list[str]]:
    """Return the index of each label's output, and the names of the outputs.

    Numbers keep their order; words are in the order of `names`, or alphabetical.

    >>> label_places([2, 1, 2], ["inform", "question"])
    ({1: 0, 2: 1}, ['inform', 'question'])
    >>> label_places(["good", "bad"], [])
    ({'bad': 0, 'good': 1}, ['bad', 'good'])

    Raises:
        InputError: there are fewer than two labels, numbers mix with words, or names don't fit the labels.
    """
    distinct = set(labels)
    if len({type(label) for label in distinct}) > 1:
        raise InputError(f"data.label: the labels are numbers and words mixed: {_shown(distinct)}")
    if len(distinct) < 2:
        raise InputError(
            f"data.label: every training row has the label {_shown(distinct)}; a classifier needs two"
        )
    ordered = sorted(distinct)  # type: ignore[type-var]
    if names and isinstance(ordered[0], str):
        if set(names) != distinct:
            raise InputError(f"data.label_names={list(names)}, but the labels are {_shown(distinct)}")
        ordered = list(names)
    if names and len(names) != len(ordered):
        raise InputError(
            f"data.label_names has {len(names)} names, and the training rows {len(ordered)} labels: "
            f"{_shown(distinct)}; give one for each, in their order"
        )
    called = list(names) or [str(label) for label in ordered]
    return {label: place for place, label in enumerate(ordered)}, called


def _rows(data: RewardData, objective: Objective | None, split: Split) -> Any:
    def check(row: Mapping[str, Any], where: str) -> None:
        _row(data, objective, row, where)

    def by(row: Mapping[str, Any]) -> str:
        return _dealt_by(data, objective, row)

    columns = [
        getattr(data, name) for name in COLUMNS if name in data.model_fields_set and getattr(data, name)
    ]
    try:
        if data.files is not None:
            rows = from_files(data.files, split, (), check, by=by)
        else:
            rows = from_hub(data.path, split, (), subset=data.subset, revision=data.revision, by=by)
        check_columns(examples_of(rows), columns, f"data: {split}")
    except InputError as error:
        message = str(error).replace("task.data_files", "data.files")
        raise InputError(
            message.replace("task.revision", "data.revision").replace("task.path", "data.path")
        ) from None
    return rows


def _of_rows(
    data: RewardData, objective: Objective | None, split: Split, rows: Iterable[Mapping[str, Any]]
) -> Iterable[RewardRow]:
    for number, row in enumerate(rows):
        if data.max_rows is not None and number >= data.max_rows:
            return
        yield _row(data, objective, row, f"data: {split} row {number}")


def _roles(data: RewardData) -> dict[str, str]:
    around = dict.fromkeys(("system", "history", TOOLS), "part of the prompt")
    return around | {getattr(data, name): name for name in COLUMNS if getattr(data, name)}


def _row(data: RewardData, objective: Objective | None, row: Mapping[str, Any], where: str) -> RewardRow:
    row = _in_texts(data, row, where)
    if _objective_of(data, objective, row, where) == "pairs":
        return _pair(data, row, where)
    label = _label(row[data.label], f"{where}: column '{data.label}'")
    if data.text in row:
        text = text_at(row, data.text, where)
    else:
        prompt = text_at(row, data.prompt, where) if data.prompt in row else ""
        text = _joined(data, prompt, text_at(row, data.response, where))
    _refuse_empty(data, text, where)
    return RewardRow((text,), label=label)


def _in_texts(data: RewardData, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the row with conversations as texts, and with the other parts of the prompt in the prompt."""
    columns, prompt = (data.chosen, data.rejected, data.response), Columns(data.prompt)
    has_prompt = not is_blank(row.get(data.prompt))
    if has_prompt:
        prompt = columns_of(list(row), data.prompt, "", where, examples=row)
    if has_prompt or any(is_conversation(messages_of(row.get(name))) for name in columns):
        return conversed(row, prompt, columns, where).row
    return row


def _dealt_by(data: RewardData, objective: Objective | None, row: Mapping[str, Any]) -> str:
    """Return the text that decides a row's split: the prompt, or the response or text without a prompt."""
    try:
        row = _in_texts(data, row, "data")
        is_pair = _objective_of(data, objective, row, "data") == "pairs"
    except InputError:
        return ""  # reading rejects this row with its number
    names = [data.prompt, data.chosen if is_pair else data.response]
    if not is_pair and data.text in row:
        names = [data.text]
    return next((str(row[name]) for name in names if row.get(name)), "")


def _objective_of(
    data: RewardData, objective: Objective | None, row: Mapping[str, Any], where: str
) -> Objective:
    # After reading, each row has every column of its file, even if the file mixes both kinds of rows.
    has_pair = {data.chosen, data.rejected} <= row.keys() and (row[data.chosen], row[data.rejected]) != (
        None,
        None,
    )
    has_label = data.label in row and (data.text in row or data.response in row)
    if has_pair and objective != "labels":
        return "pairs"
    if has_label and objective != "pairs":
        return "labels"
    for_objective = f" for objective={objective}" if objective else ""
    raise InputError(
        f"{where}: {EXPECTED}{for_objective}; {there_are(row, 'columns')}. "
        "If a column has another name, give it as data.text=NAME, data.label=NAME, data.chosen=NAME …"
    )


def _pair(data: RewardData, row: Mapping[str, Any], where: str) -> RewardRow:
    chosen, rejected = (text_at(row, column, where) for column in (data.chosen, data.rejected))
    _refuse_empty(data, chosen, f"{where}: column '{data.chosen}'")
    _refuse_empty(data, rejected, f"{where}: column '{data.rejected}'")
    if data.prompt in row and isinstance(row[data.prompt], str):
        chosen, rejected = (_joined(data, row[data.prompt], text) for text in (chosen, rejected))
    margin = 0.0 if data.margin is None else _margin(row.get(data.margin), f"{where}: column '{data.margin}'")
    return RewardRow((chosen, rejected), margin=margin)


def _of_task(data: RewardData, task: Task, split: Split) -> Iterable[RewardRow]:
    for number, prompt in enumerate(task.prompts(split)):
        if data.max_rows is not None and number >= data.max_rows:
            return
        if data.label not in prompt.meta or not prompt.references:
            there = ", ".join(prompt.meta) or "nothing"
            raise InputError(
                f"task, prompt {prompt.id}: expected a reference, and its label as data.label={data.label} "
                f"in the meta data, which has: {there}"
            )
        label = _label(prompt.meta[data.label], f"task, prompt {prompt.id}: meta data '{data.label}'")
        yield RewardRow((_joined(data, prompt.text, prompt.references[0]),), label=label)


def _joined(data: RewardData, prompt: str, response: str) -> str:
    """Join prompt and response like the served reward; a response that repeats its prompt stays whole."""
    if data.join != "whole":
        return utterance_pair(prompt, response, data.join)
    if response.startswith(prompt):
        return response
    return whole_text(Sample(response, prompt=prompt), include_prompt=True)


def _label(value: Any, where: str) -> int | str:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and WHOLE.fullmatch(value):
        return int(float(value))  # cells of a table are texts
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int | str) or value == "":
        raise InputError(f"{where}: expected a label, a whole number or a word, got {value!r:.200}")
    return value


def _margin(value: Any, where: str) -> float:
    try:
        if math.isfinite(margin := float(value)):
            return margin
    except (TypeError, ValueError):
        pass
    raise InputError(f"{where}: expected a number, got {value!r:.200}")


def _refuse_empty(data: RewardData, text: str, where: str) -> None:
    if not text.strip() and not data.skip_empty:
        raise InputError(f"{where}: the text is empty; data.skip_empty=true leaves such rows out")


def _shown(labels: Iterable[int | str]) -> str:
    names = sorted(map(str, labels))
    return ", ".join(names[:10]) + (f" … ({len(names)} in all)" if len(names) > 10 else "")
