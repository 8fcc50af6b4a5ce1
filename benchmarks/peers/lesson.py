"""A lesson for both sides of `studies.peer_learning`: stories whose words begin with one letter.

Both sides import this file, each in its own environment, so it needs only Python.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

LETTER = "s"
WHO = ("girl", "boy", "cat", "dog", "bird", "man", "bear", "fish", "mouse", "duck")
WHEN = ("One day", "One night", "Once")
WHERE = ("park", "sea", "farm", "shop", "lake", "hill", "wood", "house")


@dataclass(frozen=True, slots=True)
class Lesson:
    """Work of a run.

    Example: `Lesson(8, 8, 1, 1e-3, 30)` trains 30 times on 8 prompts × 8 responses, in one epoch.
    """

    prompts: int  # an iteration
    group_size: int
    epochs: int
    learning_rate: float
    iterations: int
    kl_coefficient: float
    new_tokens: int = 48

    @property
    def sequences(self) -> int:
        return self.prompts * self.group_size


LESSONS = {"grpo": Lesson(8, 8, 1, 1e-3, 30, 0.04), "ppo": Lesson(64, 1, 4, 3e-4, 30, 0.05)}


def share_of_letter(completions: Sequence[str], **_: Any) -> list[float]:
    """Return the share of each text's words that begin with the letter; 0 for a text without words."""
    texts = [text.split() for text in completions]
    return [sum(word.lower().startswith(LETTER) for word in words) / max(len(words), 1) for words in texts]


def prompts(count_tokens: Callable[[str], int]) -> list[str]:
    """Return openings of stories that all have the commonest number of tokens.

    trl's PPO passes prompt and response to a reward model as one sequence, so equal lengths separate them. It
    also waits forever if a batch is larger than the data.
    """
    texts = [f"{when} a {who} went to the {where}" for when, who, where in product(WHEN, WHO, WHERE)]
    (length, _), *_ = Counter(map(count_tokens, texts)).most_common(1)
    return [text for text in texts if count_tokens(text) == length]
