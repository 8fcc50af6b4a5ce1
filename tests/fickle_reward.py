"""A reward as a user might write it, that can't score everything."""

import time
from collections.abc import Sequence

from contracts.scores import Sample


class Fickle:
    """The share of even numbers, raising on prompts that begin with `never`; 0 has no share."""

    def __init__(self, never: str = "7", pause_s: float = 0.0) -> None:
        self.never, self.pause_s = never, pause_s

    def score(self, samples: Sequence[Sample]) -> list[float]:
        time.sleep(self.pause_s)
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> float:
        if sample.prompt.split()[0] == self.never:
            raise ValueError(f"I never score {self.never}")
        numbers = [int(word) for word in sample.text.split() if word.isdigit()]
        return sum(number % 2 == 0 for number in numbers) / max(len(numbers), 1)
