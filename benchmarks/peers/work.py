"""The work of each comparison, which both sides import in their own environments."""

from dataclasses import dataclass

PROMPT_TOKENS = (8, 16)  # shortest, longest
LEARNING_RATE, KL_COEFFICIENT = 1e-5, 0.04


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a GPT-2 with random weights, in fp32."""

    layers: int
    width: int
    heads: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Work:
    """One iteration, and how many of them are timed.

    Example: `Work(8, 8, 48, 1, 5, 5, 4)` trains on 8 prompts × 8 responses of 48 tokens, in one epoch of one
    minibatch.
    """

    prompts: int
    group_size: int  # responses of each prompt
    new_tokens: int
    epochs: int
    turns: int  # measured turns of each side
    iterations: int  # a turn
    warm_up: int

    @property
    def sequences(self) -> int:
        return self.prompts * self.group_size


SHAPES = {"tiny": Shape(4, 128, 4, 1_000), "gpt2": Shape(12, 768, 12, 50_257)}
GROUPS = {"tiny": Work(8, 8, 48, 1, 5, 5, 4), "gpt2": Work(2, 8, 48, 1, 5, 1, 2)}
WORK = {
    "ppo": {"tiny": Work(64, 1, 32, 4, 5, 5, 4), "gpt2": Work(16, 1, 32, 4, 4, 1, 1)},
    "grpo": GROUPS,
    "rloo": GROUPS,
}
