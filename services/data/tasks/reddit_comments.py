"""Reply to a comment on Reddit like replies with many votes, or like replies that were voted down."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import SPLITS, Split
from services.data.tasks.files import from_files
from services.data.tasks.response_task import Answer, Answered, ResponseTask
from services.data.tasks.token_counts import token_counter

TEXTS = ("parent_text", "text")
ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
KAGGLE = {"positive": "comments_positive.csv", "negative": "comments_negative.csv"}
HELD_OUT: tuple[Split, ...] = ("test", "validation")

Polarity = Literal["positive", "negative"]


class RedditComments(ResponseTask):
    """Task over rows of `parent_text`, `text` and `score`, cleaned as in LoL-RL (Baheti et al. 2024).

    The two files of Kaggle's "Reddit comment scores" are split as in LoL-RL: rows are sampled from each file,
    and the first ones become the test and validation of both polarities. Other files keep their splits; their
    training rows are selected by the sign of the score.
    """

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "reddit_comments"
    columns: ClassVar[tuple[str, ...]] = (*TEXTS, "score")
    default_metrics: ClassVar[tuple[str, ...]] = ("distinct_n", "length")
    source: ClassVar[str] = "Kaggle's Reddit comment scores"

    path: str = ""
    polarity: Polarity = "positive"  # which replies are trained on
    eos_token: str = "<|endoftext|>"  # stands after the comment: the policy's end token, as a text
    max_words: int = Field(default=100, ge=1)  # limit of a comment and of a reply; longer ones are skipped
    max_pair_tokens: int = Field(default=300, ge=1)  # token limit of comment and reply together
    tokenizer: str | None = None  # counts tokens, in LoL-RL microsoft/DialoGPT-medium; None: words and marks
    num_drawn: int = Field(default=102_000, ge=1)  # rows of each of Kaggle's files
    num_eval: int = Field(default=1000, ge=1)  # test rows of each file, and as many for validation
    clean_test: bool = True  # false, as in LoL-RL: a comment's replies may be in several splits
    seed: int = Field(default=901, ge=0)  # seed of the sample of rows

    def answered(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Answered]:
        parent, reply = (_cleaned(fields, column, where) for column in TEXTS)
        score = _score(fields, where)
        problem = self._too_long(parent, reply) if parent and reply else "no text"
        if not problem and math.isnan(score):
            problem = "no score"
        is_wanted = score > 0 if self.polarity == "positive" else score < 0
        if not problem and split == "train" and not is_wanted:
            problem = f"not {self.polarity}"
        prompt = Prompt("", parent + self.eos_token, meta={"turns": [parent]})
        return [Answered(prompt, (Answer(reply, scores={"score": score}),), problem)]

    def rows(self, split: Split) -> Any:
        return super().rows(split) if self._kaggle is None else self.divided[split]

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        return [] if self._kaggle is not None else super().first_prompts(split)

    @cached_property
    def divided(self) -> dict[Split, list[Mapping[str, Any]]]:
        """Sample and split Kaggle's rows. Unusable rows go to train, which counts them."""
        assert self._kaggle is not None
        by_split: dict[Split, list[Mapping[str, Any]]] = {split: [] for split in SPLITS}
        home: dict[str, Split] = {}  # split of each comment's replies
        for polarity, name in KAGGLE.items():
            file = str(self._kaggle / name)
            rows = from_files(dict.fromkeys(SPLITS, file), "train", self.columns)
            drawn = random.Random(f"{self.seed} {polarity}")
            order = drawn.sample(range(len(rows)), min(len(rows), self.num_drawn))
            num_found = dict.fromkeys(SPLITS, 0)
            for fields in rows.select(order):
                (one,) = self.answered("validation", fields, file)
                split: Split = "train"
                if not one.left_out:
                    split = next((name for name in HELD_OUT if num_found[name] < self.num_eval), "train")
                    split = home.setdefault(one.prompt.text, split) if self.clean_test else split
                num_found[split] += 1
                by_split[split].append({name: fields[name] for name in self.columns})
        return by_split

    @property
    def _kaggle(self) -> Path | None:
        """Return the folder with Kaggle's files, or None for other data."""
        folder = Path(self.data_files) if isinstance(self.data_files, str) else None
        return folder if folder and all((folder / name).is_file() for name in KAGGLE.values()) else None

    def _too_long(self, parent: str, reply: str) -> str:
        if any(len(text.split()) > self.max_words for text in (parent, reply)):
            return f"more than {self.max_words} words"
        count = token_counter(self.tokenizer)
        is_long = count(parent) + count(reply) > self.max_pair_tokens
        return f"more than {self.max_pair_tokens} tokens" if is_long else ""


def _cleaned(fields: Mapping[str, Any], column: str, where: str) -> str:
    """Return the text with single blanks and `<URL>` for addresses; "" for an empty field."""
    text = fields[column]
    if text is None or text != text:  # an empty field of a CSV file
        return ""
    if not isinstance(text, str):
        raise InputError(f"{where}: expected a text in column '{column}', got {text!r:.200}")
    return ADDRESS.sub("<URL>", " ".join(text.split()))


def _score(fields: Mapping[str, Any], where: str) -> float:
    score = fields["score"]
    try:
        return math.nan if score in (None, "") else float(score)
    except (TypeError, ValueError):
        raise InputError(f"{where}: expected a number in column 'score', got {score!r:.200}") from None
