"""Columns of a user's rows by name, for the prompt, other parts of the prompt, and the references.

prompt       prompt, messages, conversations, question, problem, instruction; else query, input, body.messages
             after an instruction its input or context; before the prompt system and history; also tools
references   answer, solution, completion, response, references; else output, target, reference, answers,
             ground_truth, reward_model.ground_truth
is good      good, label (TRL), kto_tag (LLaMA-Factory), if it is true or false and no references are given

If `prompt` is missing, `Prompt` and ` prompt ` count as `prompt`. Every other column is reported as unread.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.messages import TOOLS, is_conversation
from contracts.errors import InputError, did_you_mean
from services.data.tasks.base import ColumnRead
from services.data.tasks.cells import as_text, in_json, is_bool, is_truth, truth_of
from services.data.tasks.rows import check_columns, nested_names, value_at

PROMPTS = ("prompt", "messages", "conversations", "question", "problem", "instruction")
OTHER_PROMPTS = ("query", "input", "body.messages")  # columns of ms-swift, of text pairs, of OpenAI's batches
REFERENCES = ("answer", "solution", "completion", "response", "references")
OTHER_REFERENCES = ("output", "target", "reference", "answers", "ground_truth", "reward_model.ground_truth")
PAIRS = ("chosen", "rejected")  # whole conversations that begin with the prompt
BESIDE_INSTRUCTIONS = ("input", "context")  # Alpaca's and Dolly's; their instructions mean nothing alone
IS_GOOD = ("good", "label", "kto_tag")
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "think", "thought", "rationale")
PICTURES = ("image", "images", "video", "videos", "audio", "audios")


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of rows, set by the user or guessed.

    Example: rows of GSM8K are `Columns("question", "answer")`, a chat's `Columns("messages", tools="tools")`.
    """

    prompt: str
    references: str | None = None
    tools: str | None = None
    unsure: tuple[str, ...] = ()  # columns that may each hold the references
    has_none: bool = False  # whether the user wants no references, not even a conversation's last answer
    system: str | None = None  # a system message before the prompt
    history: str | None = None  # turns before the prompt
    beside: tuple[str, ...] = ()  # texts after an instruction
    is_good: str | None = None  # false: the reference is a bad answer
    rejected: str | None = None  # other column of a pair of whole conversations, if one holds the prompt

    @property
    def roles(self) -> dict[str, str]:
        """Return the role of each column."""
        roles = dict.fromkeys(self.beside, "part of the prompt, after the instruction")
        roles |= {self.prompt: "prompt"}
        for name, role in (
            (self.references, "reference"),
            (self.tools, "tools of the prompt"),
            (self.system, "system message before the prompt"),
            (self.history, "turns before the prompt"),
            (self.is_good, "says whether the reference is good; a bad one is left out"),
            (self.rejected, "prompt: the common beginning of the pair's conversations"),
        ):
            roles |= {name: role} if name is not None else {}
        return roles


def columns_of(
    names: Sequence[str],
    prompt: str | None,
    references: str | None,
    where: str,
    key: str = "task.prompt_column",
    *,
    examples: Mapping[str, Any] | None = None,
    system: str | None = None,
    beside: str | None = None,
) -> Columns:
    """Return the columns to read; guess columns that are not set by their names.

    >>> columns_of(["question", "answer", "id"], None, None, "here").roles
    {'question': 'prompt', 'answer': 'reference'}

    Args:
        prompt: column that is set; None: the column from `PROMPTS`.
        references: column that is set; "": none; None: the column from `REFERENCES`, if there is only one.
        key: option that names the prompt's column, for messages.
        examples: a value of each column, by which columns of references and of truth values are known, too.
        system: column that is set; "": none; None: `system`, if it exists.
        beside: column after an instruction that is set; "": none; None: `input` and `context`.

    Raises:
        InputError: a column is missing, or several may hold the prompt.
    """
    there = dict.fromkeys(names) | dict(examples or {})
    prompt_column = prompt or _prompt(there, where, key)
    check_columns(there, [column for column in (prompt_column, references, system, beside) if column], where)
    answers = _references(there, prompt_column) if references is None else []
    inputs = named(there, BESIDE_INSTRUCTIONS) if normal(prompt_column) == "instruction" else []
    return Columns(
        prompt_column,
        references or (answers[0] if len(answers) == 1 else None),
        _first(there, (TOOLS,), prompt_column),
        tuple(answers) if len(answers) > 1 else (),
        has_none=references == "",
        system=_first(there, ("system",), prompt_column) if system is None else system or None,
        history=next((name for name in named(there, ("history",)) if _has_turns(there[name])), None),
        beside=tuple(inputs) if beside is None else (beside,) if beside else (),
        is_good=None if references else is_good_column(there),
        rejected=_other_of_pair(there, prompt_column),
    )


def reads(
    roles: Mapping[str, str], examples: Mapping[str, Any], hints: Mapping[str, str] | None = None
) -> list[ColumnRead]:
    """Return each column of the rows with its role, "" if it is not read.

    Args:
        roles: roles of columns and of values inside them, such as `reward_model.ground_truth`.
        hints: how to read a column that is not read.
    """
    inside = {
        name.split(".")[0]: f"{role}, at {name}" for name, role in roles.items() if name not in examples
    }
    return [
        ColumnRead(name, roles.get(name) or inside.get(name, ""), _hint(name, hints or {}), value)
        for name, value in examples.items()
    ]


def not_read(by_part: Mapping[str, Sequence[ColumnRead]]) -> list[str]:
    """Return a line about the unread columns of each part of a mixture.

    Args:
        by_part: columns of each part; the only task has the part "".

    >>> not_read({"": [ColumnRead("prompt", "prompt"), ColumnRead("id", ""), ColumnRead("image", "", "why")]})
    ['columns of the data that are not read: id, image (why)']
    """
    lines = []
    for part, columns in by_part.items():
        names = [
            column.name + (f" ({column.hint})" if column.hint else "")
            for column in columns
            if not column.read_as
        ]
        if names:
            whose = f"the data of {part}" if part else "the data"
            lines.append(f"columns of {whose} that are not read: {', '.join(names)}")
    return lines


def named(there: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns with one of these names. If none matches exactly, ignore case and blanks.

    >>> named(["Prompt", "answer"], ["prompt", "x"]), named(["Prompt", "x"], ["prompt", "x"])
    (['Prompt'], ['x'])
    """
    known = [*there] + (nested_names(there) if isinstance(there, Mapping) else [])
    same: dict[str, str] = {}
    for column in known:
        same.setdefault(normal(column), column)
    return [name for name in names if name in known] or [same[name] for name in names if name in same]


def normal(name: str) -> str:
    """Return a column's name in lower case, without blanks around it."""
    return "_".join(name.lower().split()).lstrip("\ufeff")


def _prompt(there: Mapping[str, Any], where: str, key: str) -> str:
    pair = named(there, PAIRS)
    columns = named(there, PROMPTS) or pair[:1] or named(there, OTHER_PROMPTS)[:1]
    if pair and normal(columns[0]) == "prompt" and set(map(normal, columns[1:])) <= {"messages"}:
        return columns[0]  # UltraFeedback's messages repeat the chosen answer
    if len(columns) > 1:
        raise InputError(
            f"{where}: columns {' and '.join(columns)} may hold the prompt: give {key}={' or '.join(columns)}"
        )
    if not columns:
        names = [*there, *nested_names(there)]
        raise InputError(
            f"{where}: there is no column 'prompt'{did_you_mean('prompt', names)}"
            + (f". Give {key}=NAME" if key else "")
        )
    return columns[0]


def _references(there: Mapping[str, Any], prompt: str) -> list[str]:
    """Return the columns that may hold the references, by their names and a value of each."""
    for names in (REFERENCES, OTHER_REFERENCES):
        columns = [name for name in named(there, names) if name != prompt]
        if readable := [name for name in columns if may_be_texts(value_at(there, name))]:
            return readable
    return []


def may_be_texts(value: Any) -> bool:
    """Return whether a value can be references: a conversation, texts, numbers, or unknown."""
    if value is None or is_conversation(value):
        return True
    values = value if isinstance(value, list) else [value]
    return all(isinstance(as_text(inner), str) for inner in values)


def is_good_column(there: Mapping[str, Any]) -> str | None:
    """Return the column that says whether a response is good. A `label` of 0 or "yes" may mean anything."""
    sure = {"good": lambda value: truth_of(value) is not None, "label": is_bool}
    names = [name for kind in IS_GOOD for name in named(there, (kind,))]
    return next((name for name in names if sure.get(normal(name), is_truth)(there[name])), None)


def _first(there: Mapping[str, Any], names: Sequence[str], prompt: str) -> str | None:
    return next((name for name in named(there, names) if name != prompt), None)


def _has_turns(value: Any) -> bool:
    """Return whether a value is a list of messages, or of pairs of a question and its answer."""
    value = in_json(value)
    if is_conversation(value):
        return True
    return isinstance(value, list) and bool(value) and all(map(is_pair, value))


def is_pair(value: Any) -> bool:
    """Return whether a value is a question with its answer, as in Alpaca's column `history`."""
    return (
        isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)
    )


def _other_of_pair(there: Mapping[str, Any], prompt: str) -> str | None:
    other = {"chosen": "rejected", "rejected": "chosen"}.get(normal(prompt))
    return None if other is None else next(iter(named(there, (other,))), None)


def _hint(name: str, hints: Mapping[str, str]) -> str:
    if name in hints:
        return hints[name]
    if normal(name) in PICTURES:
        return "only texts are read"
    return "the thought before the answer" if normal(name) in THOUGHTS else ""
