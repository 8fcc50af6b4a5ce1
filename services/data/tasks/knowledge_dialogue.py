"""Base of the tasks in which a speaker with a piece of knowledge answers a speaker without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.file_rows import file_rows
from services.data.tasks.files import DataFiles, from_files, kept_rows, read_ahead, split_files
from services.data.tasks.response_task import Answer, Answered, ResponseTask
from services.data.tasks.rows import check_columns, expect_file, text_at, texts_at
from services.data.tasks.token_counts import token_counter

NOTHING_CHECKED = "no_passages_used"
VALIDATION_NAMES = (
    "valid.json",
    "valid_topic_split.json",
)  # FaithDial's; Wizard of Wikipedia's unseen topics
FLAT = ("knowledge", "history", "response")


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply with its knowledge and the utterances before it.

    Example: `Reply("Jazz began in New Orleans.", ("I love jazz.",), "It began in New Orleans, I hear.")`
    """

    knowledge: str
    history: tuple[str, ...]
    text: str


class KnowledgeDialogue(ResponseTask):
    """Task whose prompts are `Knowledge: …` and the utterances, each followed by an end mark, as in LoL-RL.

    A row is a reply of FaithDial (`knowledge`, `history`, `response`), or a conversation of FaithDial
    (`utterances`, a list of replies) or of Wizard of Wikipedia (`dialog`).
    """

    raw_text: ClassVar[bool] = True
    default_metrics: ClassVar[tuple[str, ...]] = ("distinct_n", "length", "meteor")

    eos_token: str = "<|endoftext|>"  # stands after the knowledge and each utterance: the policy's end token
    max_history_tokens: int = Field(default=400, ge=1)  # the oldest utterances are dropped to fit
    tokenizer: str | None = None  # counts tokens, in LoL-RL microsoft/DialoGPT-medium; None: words and marks
    keep_unchecked: bool = True  # false, as in LoL-RL: the history lacks a wizard's turns without knowledge

    def answered(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Answered]:
        if "dialog" in fields:
            replies = wizard_replies(fields, where, self.keep_unchecked)
            return [self._asked(reply, str(number)) for number, reply in replies]
        if "utterances" in fields:
            utterances = fields["utterances"]
            if not isinstance(utterances, list) or not all(isinstance(one, Mapping) for one in utterances):
                raise InputError(f"{where}: expected a list of objects in column 'utterances'")
            return [self._asked(_flat(one, where), str(number)) for number, one in enumerate(utterances)]
        return [self._asked(_flat(fields, where), "")]

    def rows(self, split: Split) -> Any:
        if self.data_files is None:
            return super().rows(split)
        return rows_of(named_files(self.data_files), split)

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        files = {} if self.data_files is None else named_files(self.data_files)
        if split not in files:
            return []
        return list(self._made(split, read_ahead(files, split, (), partial(self._usable, split))))

    def _asked(self, reply: Reply, ident: str) -> Answered:
        history = self._shortened(reply.history)
        parts = (f"Knowledge: {reply.knowledge}", *history)
        text = "".join(part + self.eos_token for part in parts)
        prompt = Prompt(ident, text, meta={"knowledge": reply.knowledge, "turns": list(history)})
        left_out = "" if history else "nothing was said before the reply"
        left_out = left_out if reply.knowledge else "no knowledge"
        return Answered(prompt, (Answer(reply.text),), left_out)

    def _shortened(self, history: Sequence[str]) -> Sequence[str]:
        """Keep the last utterances that fit with their marks, at least one."""
        count, room = token_counter(self.tokenizer), self.max_history_tokens
        for kept, utterance in enumerate(reversed(history)):
            room -= count(utterance) + 1
            if room < 0:
                return history[len(history) - max(kept, 1) :]
        return history


def wizard_replies(fields: Mapping[str, Any], where: str, keep_unchecked: bool) -> list[tuple[int, Reply]]:
    """Return the wizard's replies with a checked sentence, and their indices in the conversation.

    Args:
        keep_unchecked: whether the history keeps the wizard's turns without a checked sentence.

    Raises:
        InputError: the column `dialog` does not hold a list of turns.
    """
    turns = fields["dialog"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise InputError(f"{where}: expected a list of turns in column 'dialog', got {turns!r:.200}")
    history: list[str] = []
    replies: list[tuple[int, Reply]] = []
    for number, turn in enumerate(turns):
        check_columns(turn, ("speaker", "text"), f"{where}, turn {number}")
        text = text_at(turn, "text", f"{where}, turn {number}").strip()
        is_wizard = "wizard" in str(turn["speaker"]).lower()
        checked = [known for known in (turn.get("checked_sentence") or {}).values() if known]
        if is_wizard and history and checked and checked[0] != NOTHING_CHECKED:
            replies.append((number, Reply(checked[0].strip(), tuple(history), text)))
        if text and (keep_unchecked or checked or not is_wizard):
            history.append(text)
    return replies


def named_files(data_files: DataFiles) -> dict[str, str]:
    """Return each split's file. The data sets use other names for validation."""
    files = dict(split_files(data_files))
    if isinstance(data_files, str) and "validation" not in files:
        there = [path for name in VALIDATION_NAMES if (path := Path(data_files) / name).is_file()]
        if there:
            files["validation"] = str(there[0])
    return files


def rows_of(files: dict[str, str], split: Split) -> Any:
    """Read one split of the files. Of a wizard's conversations only needed fields stay in memory.

    Raises:
        InputError: a file is missing, or its content does not fit its name.
    """
    source = split if split in files else "train"
    if source not in files:
        raise InputError(f"task.data_files: there is no train split; {there_are(files, 'splits')}")
    path = Path(files[source])
    if path.suffix not in (".json", ".jsonl"):
        return from_files(files, split, FLAT)
    rows = read_conversations(path)
    return [rows[row] for row in kept_rows(len(rows), split, files, f"task.data_files={path}")]


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON or JSON Lines file. Of a wizard's conversation keep only needed fields.

    Raises:
        InputError: the file is missing, or does not hold objects.
    """
    expect_file(path)
    return [_needed(row) for row in file_rows(path)]


def _needed(row: dict[str, Any]) -> dict[str, Any]:
    turns, keys = row.get("dialog"), ("speaker", "text", "checked_sentence")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return row
    return {"dialog": [{key: turn[key] for key in keys if key in turn} for turn in turns]}


def _flat(fields: Mapping[str, Any], where: str) -> Reply:
    check_columns(fields, FLAT, where)
    history = tuple(text.strip() for text in texts_at(fields, "history", where))
    knowledge, text = (text_at(fields, column, where).strip() for column in ("knowledge", "response"))
    return Reply(knowledge, history, text)
