"""Rewards and metrics as a user might write them, good ones and bad ones."""

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from contracts.scores import MetricValue, Sample


def brevity(samples: Sequence[Sample]) -> list[float]:
    """A user's plain function."""
    return [1.0 if len(sample.text.split()) < 3 else 0.0 for sample in samples]


class Words:
    """A user's plain class with an option."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.factor * len(sample.text.split()) for sample in samples]


class Moody:
    """Does what the text says: raises, returns NaN, dies, takes its time, or gives the process away."""

    deterministic: ClassVar[bool] = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self._one(sample.text) for sample in samples]

    def _one(self, text: str) -> float:
        if text == "raise":
            raise KeyError("no such mood")
        if text == "nan":
            return math.nan
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if text.startswith("wait "):
            self._wait(Path(text.removeprefix("wait ")))
        time.sleep({"sleep": 1.0, "nap": 0.05}.get(text, 0.0))
        return float(os.getpid()) if text == "pid" else 1.0

    def _wait(self, folder: Path) -> None:
        """Leave a file with the process's number, and wait for the file "go"."""
        (folder / str(os.getpid())).touch()
        end = time.monotonic() + 60
        while not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)


class Ranked:
    """The place of a text among those of its group that it sees, the shortest first."""

    deterministic: ClassVar[bool] = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [
            float(sum(other.group == one.group and len(other.text) < len(one.text) for other in samples))
            for one in samples
        ]


class Loads(Words):
    """A class with a method of its own that happens to have this name."""

    def load(self) -> None:
        raise AssertionError


class FailsAgain(Words):
    """Its first process loads it, the next one can't."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        with open(mark, "x"):
            pass

    def score(self, samples: Sequence[Sample]) -> list[float]:
        if samples[0].text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().score(samples)


class DiesOnce(Words):
    """Its first process is killed as it starts."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


class Slow:
    """50 ms a text, whatever it says; the score is the process."""

    deterministic: ClassVar[bool] = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        time.sleep(0.05 * len(samples))
        return [float(os.getpid()) for _ in samples]


class SlowFamily(Slow):
    """The same for whole groups."""

    scores: ClassVar[str] = "groups"


class Tally:
    """How many texts this process has graded so far: a cache shows in it."""

    def __init__(self) -> None:
        self.num_graded = 0

    def score(self, samples: Sequence[Sample]) -> list[float]:
        self.num_graded += len(samples)
        return [float(self.num_graded) for _ in samples]


class Picky:
    """Wants an intent with every prompt, and a reference."""

    needs_references: ClassVar[bool] = True
    needs_meta: ClassVar[tuple[str, ...]] = ("intent",)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(sample.meta["intent"]) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"mine/intent": MetricValue(sum(self.score(samples)) / len(samples))}


class Census:
    """A metric that says how many texts it was shown."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"mine/texts": MetricValue(float(len(samples)))}


class Miscounting:
    """Drops the scores of empty texts."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0 for sample in samples if sample.text]


class Unmakeable:
    """Needs a file that is not there."""

    def __init__(self) -> None:
        raise FileNotFoundError("my_reward_model.bin")

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [0.0 for _ in samples]


class Vowels:
    """A user's metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        rows = tuple(float(sum(letter in "aeiou" for letter in sample.text)) for sample in samples)
        return {"mine/vowels": MetricValue(corpus=sum(rows), rows=rows)}


class Formless:
    """A metric that returns a bare number."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, float]:
        return {"mine/formless": 1.0}


class Mapped:
    """Answers with a dict, whose keys would be taken for scores."""

    def score(self, samples: Sequence[Sample]) -> dict[float, str]:
        return {float(place): sample.text for place, sample in enumerate(samples)}

    def compute(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0]


class Mean:
    """Gives one score for all."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [sum(len(sample.text) for sample in samples) / len(samples)]


class Misspelt:
    """Asks for what a sample does not have."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [len(sample.answer) for sample in samples]  # type: ignore[attr-defined]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"mine/length": MetricValue(float(len(samples[2].text)))}


class Strict:
    """Takes numbers alone, and raises otherwise."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(sample.text.split()[-1].rstrip(".")) for sample in samples]


class Peeking:
    """Looks at the groups, and says nothing of it."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(sum(other.group == one.group for other in samples)) for one in samples]


class Hanging:
    """Thinks about it for an hour."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        time.sleep(3600)
        return [0.0 for _ in samples]


class Deadly:
    """Takes its process along."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        os._exit(3)


class Heavy:
    """Loads for an hour."""

    def __init__(self) -> None:
        time.sleep(3600)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [0.0 for _ in samples]


class Located:
    """Score of a file beside the command and of an environment variable: 1 where both are there."""

    def __init__(self, file: str, variable: str) -> None:
        self.is_there = os.path.exists(file) and variable in os.environ

    def score(self, samples: Sequence[Sample]) -> dict[str, bool] | list[float]:
        return [1.0 for _ in samples] if self.is_there else {"there": False}


class LastNumber(Words):
    """Its answer is the last number of a text; a text may take its process with it."""

    def answer(self, text: str) -> str | None:
        if text == "exit":
            os._exit(3)
        numbers = [word for word in text.split() if word.isdecimal()]
        if text == "raise":
            raise KeyError("no such number")
        return numbers[-1] if numbers else None


class AnswersElse(Words):
    """A user's class whose `answer` is something else."""

    def answer(self, question: str, hint: str) -> str:
        return question + hint


class Family:
    """The place of a text among the answers to its prompt; writes down each call when it is done."""

    scores: ClassVar[str] = "groups"

    def __init__(self, file: str) -> None:
        self.file = file

    def score(self, samples: Sequence[Sample]) -> list[float]:
        time.sleep(0.05)
        return self.ranked(samples)

    def ranked(self, samples: Sequence[Sample]) -> list[float]:
        call = {"pid": os.getpid(), "groups": sorted({sample.group for sample in samples})}
        with open(self.file, "a") as opened:
            opened.write(json.dumps({**call, "texts": [sample.text for sample in samples]}) + "\n")
        lengths = sorted(len(sample.text) for sample in samples)
        return [float(lengths.index(len(sample.text))) for sample in samples]


class FamilyLater(Family):
    """The same as a coroutine."""

    async def score(self, samples: Sequence[Sample]) -> list[float]:  # type: ignore[override]
        await asyncio.sleep(0.3)
        return self.ranked(samples)


class Sluggish:
    """A coroutine that takes a while for each text."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.counts = {"calls": 0.0}

    async def score(self, completions: Sequence[str]) -> list[float]:
        await asyncio.sleep(self.seconds)
        self.counts["calls"] = self.counts.get("calls", 0.0) + 1
        return [float(len(text)) for text in completions]


def leaves(completions: Sequence[str]) -> list[float]:
    """Exits at a bad text, as scripts do."""
    if "bad" in completions:
        raise SystemExit(3)
    return [float(len(text)) for text in completions]


async def leaves_later(completions: Sequence[str]) -> list[float]:
    return leaves(completions)
