"""Columns of a user's rows by name: which hold the prompt, what stands around it, and the references.

prompt       prompt, messages, conversations, question, problem, instruction; else query, input, body.messages
             behind an instruction its input or context; before it system and history; beside it tools
references   answer, solution, completion, response, references; else output, target, reference, answers,
             ground_truth, reward_model.ground_truth
is good      good, label (TRL), kto_tag (LLaMA-Factory), if it is true or false and no references are given

`Prompt` and ` prompt ` are `prompt`, too, where there is none. Every other column is reported as not read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.messages import TOOLS, is_conversation
from contracts.errors import InputError, did_you_mean
from services.tasks.base import ColumnRead
from services.tasks.cells import as_text, in_json, is_bool, is_truth, truth_of
from services.tasks.rows import check_columns, nested_names, value_at

PROMPTS = ("prompt", "messages", "conversations", "question", "problem", "instruction")
OTHER_PROMPTS = ("query", "input", "body.messages")  # of ms-swift, of pairs of texts, of OpenAI's batches
REFERENCES = ("answer", "solution", "completion", "response", "references")
OTHER_REFERENCES = ("output", "target", "reference", "answers", "ground_truth", "reward_model.ground_truth")
PAIRS = ("chosen", "rejected")  # whole conversations that begin with the prompt
BESIDE_INSTRUCTIONS = ("input", "context")  # Alpaca's and Dolly's; their instructions mean nothing alone
IS_GOOD = ("good", "label", "kto_tag")
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "think", "thought", "rationale")
PICTURES = ("image", "images", "video", "videos", "audio", "audios")


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
    system: str | None = None  # a system message before the prompt
    history: str | None = None  # turns before the prompt
    beside: tuple[str, ...] = ()  # texts behind an instruction
    is_good: str | None = None  # false: the reference is a bad answer
    rejected: str | None = None  # the other of a pair of whole conversations, where one is the prompt

    @property
    def roles(self) -> dict[str, str]:
        """Return what each column is read as."""
        found = dict.fromkeys(self.beside, "part of the prompt, behind the instruction")
        found |= {self.prompt: "prompt"}
        for name, role in (
            (self.references, "reference"),
            (self.tools, "tools of the prompt"),
            (self.system, "system message before the prompt"),
            (self.history, "turns before the prompt"),
            (self.is_good, "says whether the reference is good; a bad one is left out"),
            (self.rejected, "prompt: what both conversations of the pair begin with"),
        ):
            found |= {name: role} if name is not None else {}
        return found


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
    """Return the columns to read; what is not given is guessed by name.

    >>> columns_of(["question", "answer", "id"], None, None, "here").roles
    {'question': 'prompt', 'answer': 'reference'}

    Args:
        prompt: the given column; None: the one of `PROMPTS` that is there.
        references: the given column; "": none; None: the one of `REFERENCES` that is there, if only one.
        key: the option that names the prompt's column, for messages.
        examples: a value of each column; a column of references or of truth values is known by it, too.
        system: the given column; "": none; None: `system`, if it is there.
        beside: the given column behind an instruction; "": none; None: `input` and `context` of one.

    Raises:
        InputError: a column is missing, or several may hold the prompt.
    """
    there = dict.fromkeys(names) | dict(examples or {})
    asked = prompt or _prompt(there, where, key)
    check_columns(there, [each for each in (asked, references, system, beside) if each], where)
    answers = _references(there, asked) if references is None else []
    found = named(there, BESIDE_INSTRUCTIONS) if normal(asked) == "instruction" else []
    return Columns(
        asked,
        references or (answers[0] if len(answers) == 1 else None),
        _first(there, (TOOLS,), asked),
        tuple(answers) if len(answers) > 1 else (),
        has_none=references == "",
        system=_first(there, ("system",), asked) if system is None else system or None,
        history=next((name for name in named(there, ("history",)) if _has_turns(there[name])), None),
        beside=tuple(found) if beside is None else (beside,) if beside else (),
        is_good=None if references else is_good_column(there),
        rejected=_other_of_pair(there, asked),
    )


def reads(
    roles: Mapping[str, str], examples: Mapping[str, Any], hints: Mapping[str, str] | None = None
) -> list[ColumnRead]:
    """Return each column of the rows with what it is read as, "" where it is not read.

    Args:
        roles: of columns and of what is inside of them, such as `reward_model.ground_truth`.
        hints: what to give so that a column is read.
    """
    inside = {
        name.split(".")[0]: f"{role}, at {name}" for name, role in roles.items() if name not in examples
    }
    return [
        ColumnRead(name, roles.get(name) or inside.get(name, ""), _hint(name, hints or {}), value)
        for name, value in examples.items()
    ]


def not_read(found: Mapping[str, Sequence[ColumnRead]]) -> list[str]:
    """Return a line about the columns that are not read for each part of a mixture.

    Args:
        found: the only task's under "".

    >>> not_read({"": [ColumnRead("prompt", "prompt"), ColumnRead("id", ""), ColumnRead("image", "", "why")]})
    ['columns of the data that are not read: id, image (why)']
    """
    lines = []
    for part, columns in found.items():
        names = [each.name + (f" ({each.hint})" if each.hint else "") for each in columns if not each.read_as]
        if names:
            whose = f"the data of {part}" if part else "the data"
            lines.append(f"columns of {whose} that are not read: {', '.join(names)}")
    return lines


def named(there: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns that have one of these names; in other letters, where none has one as it is.

    >>> named(["Prompt", "answer"], ["prompt", "x"]), named(["Prompt", "x"], ["prompt", "x"])
    (['Prompt'], ['x'])
    """
    known = [*there] + (nested_names(there) if isinstance(there, Mapping) else [])
    same: dict[str, str] = {}
    for each in known:
        same.setdefault(normal(each), each)
    return [name for name in names if name in known] or [same[name] for name in names if name in same]


def normal(name: str) -> str:
    """Return a column's name in small letters, without blanks around it."""
    return "_".join(name.lower().split()).lstrip("\ufeff")


def _prompt(there: Mapping[str, Any], where: str, key: str) -> str:
    found = named(there, PROMPTS) or named(there, PAIRS)[:1] or named(there, OTHER_PROMPTS)[:1]
    if len(found) > 1:
        raise InputError(
            f"{where}: columns {' and '.join(found)} may hold the prompt: give {key}={' or '.join(found)}"
        )
    if not found:
        names = [*there, *nested_names(there)]
        raise InputError(
            f"{where}: there is no column 'prompt'{did_you_mean('prompt', names)}"
            + (f". Give {key}=NAME" if key else "")
        )
    return found[0]


def _references(there: Mapping[str, Any], prompt: str) -> list[str]:
    """Return the columns that may hold the references, judged by their names and by a value of each."""
    for names in (REFERENCES, OTHER_REFERENCES):
        found = [name for name in named(there, names) if name != prompt]
        if readable := [name for name in found if may_be_texts(value_at(there, name))]:
            return readable
    return []


def may_be_texts(value: Any) -> bool:
    """Return whether a value can be references: a conversation, texts or numbers, or nothing known."""
    if value is None or is_conversation(value):
        return True
    values = value if isinstance(value, list) else [value]
    return all(isinstance(as_text(each), str) for each in values)


def is_good_column(there: Mapping[str, Any]) -> str | None:
    """Return the column that says whether a response is good; a `label` of 0 or "yes" may be anything."""
    sure = {"good": lambda value: truth_of(value) is not None, "label": is_bool}
    found = [name for kind in IS_GOOD for name in named(there, (kind,))]
    return next((name for name in found if sure.get(normal(name), is_truth)(there[name])), None)


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
        isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(each, str) for each in value)
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
