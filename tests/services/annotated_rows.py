"""A task with responses and a reward that keeps a ledger, for the tests of `whetstone annotate`."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from contracts.rollout import Prompt
from contracts.scores import Sample
from contracts.settings import Settings
from services.data.tasks.base import Split
from services.data.tasks.responses import ResponseRow

DIES_AFTER = "LEDGER_DIES_AFTER"  # rows; in the environment, so that the settings stay the same


class Pairs(Settings):
    """Prompt i, "i 1", has the responses "i 77" and "i i", the former preferred; ten validation prompts."""

    default_reward: ClassVar[None] = None

    num: int = 10

    def prompts(self, split: Split) -> list[Prompt]:
        first, num = (0, self.num) if split == "train" else (50, 10)
        return [Prompt(f"pairs/{split}/{i}", f"{first + i} 1") for i in range(num)]

    def responses(self, split: Split) -> list[ResponseRow]:
        return [
            ResponseRow(prompt, text, group, is_good=order == 0, order=order)
            for group, prompt in enumerate(self.prompts(split))
            for order, text in enumerate((f"{group} 77", f"{group} {group}"))
        ]


class Answered(Pairs):
    """Each prompt has a reference, "9 9"."""

    def prompts(self, split: Split) -> list[Prompt]:
        return [replace(prompt, references=("9 9",)) for prompt in super().prompts(split)]


class Ledger:
    """The last number over 100; each row that is scored is a line in `file`. Some rows can't be scored."""

    def __init__(self, file: str, never: str = "", pause_s: float = 0.0) -> None:
        self.file, self.never, self.pause_s = Path(file), never, pause_s

    def score(self, samples: Sequence[Sample]) -> list[float]:
        for sample in samples:
            if self.never and sample.text == self.never:
                raise ValueError(f"never {self.never}")
        time.sleep(self.pause_s * len(samples))
        with self.file.open("a") as ledger:
            ledger.writelines(f"{sample.prompt} | {sample.text}\n" for sample in samples)
        limit = os.environ.get(DIES_AFTER)
        if limit is not None and len(self.file.read_text().splitlines()) > int(limit):
            os.kill(os.getpid(), signal.SIGKILL)
        last = [(sample.text.split() or [""])[-1] for sample in samples]
        return [int(word) / 100 if word.isdigit() else 0.0 for word in last]


class Length(Settings):
    """The number of words."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(len(sample.text.split())) for sample in samples]


class Last(Settings):
    """The last number over 100; 0 where there is none."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        last = [(sample.text.split() or [""])[-1] for sample in samples]
        return [int(word) / 100 if word.isdigit() else 0.0 for word in last]


def first_letter(text: str) -> str:
    """A post-processor."""
    return text.strip()[:1]


class GroupLedger:
    """The place of a response in its group, the shortest first; each call is a line in `file`."""

    scores: ClassVar[str] = "groups"

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        groups = sorted({sample.group for sample in samples})
        with self.file.open("a") as ledger:
            ledger.write(f"{' '.join(groups)}: {' | '.join(sample.text for sample in samples)}\n")
        texts = sorted((sample.text for sample in samples), key=len)
        return [float(texts.index(sample.text)) for sample in samples]
