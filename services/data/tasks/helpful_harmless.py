"""Answer as an assistant that is helpful and harmless: pairs of replies, one preferred (Bai et al. 2022)."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from contracts.settings import Strings
from services.data.tasks.base import Split
from services.data.tasks.files import hub_splits
from services.data.tasks.response_task import Answer, Answered, ResponseTask
from services.data.tasks.rows import check_columns, text_at, texts_at

PAIR = ("chosen", "rejected")
# Folders of the hub's data set, by LoL-RL's names for the parts of its test.
SEGMENTS = {
    "harmless_base": "harmless-base",
    "helpful_base": "helpful-base",
    "helpful_online": "helpful-online",
    "helpful_rejection": "helpful-rejection-sampled",
}
SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant):")
TAG = re.compile(r"<\|(prompter|assistant)\|>")
OF_TAG = {"prompter": "Human", "assistant": "Assistant"}

Turns = list[tuple[str, str]]  # speaker and text


class HelpfulHarmless(ResponseTask):
    """Task over pairs of conversations, `chosen` and `rejected`, that differ in the last reply.

    Rows may also be `prefix`, `suffix` and optionally `reward`: lists of turns with tags, replies and raw
    rewards, as in PRO and LoL-RL (Song et al. 2024; Baheti et al. 2024). Prompts are LoL-RL's and end in
    `### Assistant:`. For the hub's data a hash of the prompt cuts validation out of the test. So validation
    does not depend on the segments, and shares no prompt with the test.
    """

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "helpful_harmless"
    default_metrics: ClassVar[tuple[str, ...]] = ("distinct_n", "length")

    path: str = "Anthropic/hh-rlhf"
    segments: Strings = Field(default=tuple(SEGMENTS), min_length=1)  # also of files with a column `segment`
    validation_share: float = Field(default=0.033, gt=0, lt=1)  # part of the hub's test: about 280 prompts
    clean_test: bool = True  # false, as in LoL-RL: the test keeps prompts that are also in validation
    skip_colons: bool = True  # skip training pairs with a reply cut off after a colon
    system: str = "A curious human talks with an AI assistant. It answers helpfully, in detail and politely."
    response_prefix: str = ""  # a blank for tokenizers whose words begin with one, such as GPT-2's

    def answered(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Answered]:
        history, replies, problem = conversation(fields, where)
        prompt = Prompt("", self.prompt_of(history), meta=self._meta(history, fields))
        scores = _scores(fields, len(replies), where)
        answers = tuple(
            Answer(self.response_prefix + reply, number == 0, {"reward": scores[number]} if scores else {})
            for number, reply in enumerate(replies)
        )
        if not problem:
            problem = self._unwanted(split, prompt.text, replies, fields)
        return [Answered(prompt, answers, problem)]

    def prompt_of(self, turns: Sequence[tuple[str, str]]) -> str:
        """Write turns as LoL-RL does, ready for the assistant's reply.

        >>> HelpfulHarmless(system="Be kind.").prompt_of([("Human", "Hi!"), ("Human", "Well?")])
        'Be kind.\\n### Human: Hi! ### Human: Well? ### Assistant:'
        """
        dialogue = " ".join(f"### {speaker}: {text}" for speaker, text in turns)
        return f"{self.system}\n{dialogue} ### Assistant:".lstrip()

    def rows(self, split: Split) -> Any:
        unknown = [name for name in self.segments if name not in SEGMENTS]
        if unknown and self.data_files is None:
            raise InputError(f"task.segments: there is no segment '{unknown[0]}'; {there_are(SEGMENTS)}")
        if self.data_files is not None:
            return super().rows(split)
        import datasets

        return datasets.concatenate_datasets([self._segment(split, name) for name in self.segments])

    @cached_property
    def validation_texts(self) -> frozenset[str]:
        return frozenset(prompt.text for prompt in self.prompts("validation"))

    def _segment(self, split: Split, name: str) -> Any:
        parts = hub_splits(self.path, self.subset, self.revision, data_dir=SEGMENTS[name])
        part = "train" if split == "train" else "test"
        if part not in parts:
            raise InputError(f"task.path={self.path}: the data set has no {part} part of {name}")
        rows = parts[part]
        check_columns(rows.column_names, PAIR, f"task.path={self.path}")
        if split == "validation" or (split == "test" and self.clean_test):
            wanted = [self._is_for_validation(row) == (split == "validation") for row in rows]
            rows = rows.select([number for number, is_wanted in enumerate(wanted) if is_wanted])
        return rows.add_column("segment", [name] * len(rows))

    def _is_for_validation(self, fields: Mapping[str, Any]) -> bool:
        """Decide by the prompt alone, so that a repeated prompt stays in one split."""
        history, _, _ = conversation(fields, f"task={self.task_name}")
        digest = hashlib.sha256(repr(history).encode()).digest()
        return int.from_bytes(digest[:8]) < self.validation_share * 2**64

    def _unwanted(self, split: Split, prompt: str, replies: Sequence[str], fields: Mapping[str, Any]) -> str:
        if fields.get("segment") not in (None, *self.segments):
            return "of another segment"
        if len(set(replies)) < len(replies):
            return "the replies are the same"
        if split == "train" and self.skip_colons and any(reply.endswith(":") for reply in replies):
            return "a reply ends in a colon"
        of_ones_own = self.data_files is not None
        if split == "test" and self.clean_test and of_ones_own and prompt in self.validation_texts:
            return "the prompt is in the validation"
        return ""

    def _meta(self, history: Turns, fields: Mapping[str, Any]) -> dict[str, Any]:
        segment = {"segment": fields["segment"]} if fields.get("segment") is not None else {}
        return {"turns": [text for _, text in history], **segment}


def conversation(fields: Mapping[str, Any], where: str) -> tuple[Turns, list[str], str]:
    """Return the turns before the last reply, the replies (best first), and the reason to leave the row out.

    Raises:
        InputError: the row has neither form.
    """
    if "prefix" in fields and "suffix" in fields:
        return _tagged(fields, where)
    check_columns(fields, PAIR, where)
    chosen, rejected = (_turns(text_at(fields, column, where), column, where) for column in PAIR)
    history, replies, problem = chosen[:-1], [chosen[-1][1], rejected[-1][1]], ""
    if history != rejected[:-1]:
        problem = "the conversations differ before the last reply"
    elif {chosen[-1][0], rejected[-1][0]} != {"Assistant"}:
        problem = "the last word is not the assistant's"
    return history, replies, problem or _misses_its_beginning(history)


def _tagged(fields: Mapping[str, Any], where: str) -> tuple[Turns, list[str], str]:
    replies = [reply.strip() for reply in texts_at(fields, "suffix", where)]
    prefixes = fields["prefix"]  # one list of turns for each reply, all equal
    prefix = (
        prefixes[0] if isinstance(prefixes, list) and prefixes and isinstance(prefixes[0], list) else prefixes
    )
    if not isinstance(prefix, list) or not all(isinstance(turn, str) for turn in prefix) or not replies:
        raise InputError(
            f"{where}: expected lists of turns in column 'prefix' and replies in column 'suffix', "
            f"got {prefixes!r:.200}"
        )
    parts = TAG.split("".join(prefix))
    history = [
        (OF_TAG[tag], text.strip())
        for tag, text in zip(parts[1::2], parts[2::2], strict=True)
        if text.strip()
    ]
    return history, replies, _misses_its_beginning(history)


def _turns(transcript: str, column: str, where: str) -> Turns:
    """Split a conversation into speakers and texts; join consecutive turns of one speaker.

    >>> _turns("\\n\\nHuman: Hi!\\n\\nHuman: Ho!\\n\\nAssistant: Yes?", "chosen", "here")
    [('Human', 'Hi!\\nHo!'), ('Assistant', 'Yes?')]
    """
    parts = SPEAKER.split(transcript)
    if len(parts) < 3:
        raise InputError(
            f"{where}: expected '\\n\\nHuman: …\\n\\nAssistant: …' in column '{column}', "
            f"got {transcript!r:.200}"
        )
    turns: Turns = []
    for speaker, text in zip(parts[1::2], parts[2::2], strict=True):
        if turns and turns[-1][0] == speaker:
            turns[-1] = (speaker, f"{turns[-1][1]}\n{text.strip()}".strip())
        else:
            turns.append((speaker, text.strip()))
    return turns


def _misses_its_beginning(history: Turns) -> str:
    if not history:
        return "nothing was said before the reply"
    return "" if history[0][0] == "Human" else "the first word is not the human's"


def _scores(fields: Mapping[str, Any], count: int, where: str) -> list[float]:
    """Return the row's raw rewards, one for each reply, or none."""
    scores = fields.get("reward")
    if scores is None:
        return []
    if (
        not isinstance(scores, list)
        or len(scores) != count
        or not all(isinstance(score, int | float) for score in scores)
    ):
        raise InputError(f"{where}: expected {count} numbers in column 'reward', got {scores!r:.200}")
    return [float(score) for score in scores]
