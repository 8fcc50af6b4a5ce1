"""First training prompts as the model reads them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contracts.rollout import Prompt, Rollout
from learner.algorithms.base import Traits
from rollout_workers.environments.dialogue import Dialogue
from services.config.settings import RunSettings
from services.models.tokenizer import load_tokenizer
from services.training.sources.annotated_data import open_source
from services.training.sources.reading import reading_of


@dataclass(frozen=True, slots=True)
class PromptAsRead:
    """A prompt as the model reads it. Example: `PromptAsRead("<s>3 5", (1, 8, 10))`"""

    text: str  # special tokens visible
    tokens: tuple[int, ...]
    responses: tuple[tuple[str, str], ...] = ()  # name and text of each response of a data set


def first_prompts(settings: RunSettings, prompts: Mapping[str, Prompt]) -> dict[str, PromptAsRead]:
    """Return each part's first training prompt as the model reads it. The only task has the part "".

    Return none if an environment writes the prompts.

    Args:
        prompts: first prompt of each part; {}: training reads only a data set.
    """
    if settings.plays and not isinstance(settings.environment, Dialogue):
        return {}
    tokenizer, traits = load_tokenizer(settings.model), settings.algorithm.traits
    by_part = {}
    for part, to_tokens in reading_of(settings, "train", tokenizer).of_part.items():
        if prompts:
            tokens = to_tokens(prompts[part])
            by_part[part] = PromptAsRead(to_tokens.text(tokens), tokens)
        else:
            by_part[part] = _of_data(traits, open_source(settings, tokenizer).next(1), to_tokens.text)
    return by_part


def _of_data(
    traits: Traits, example: Sequence[Rollout], text: Callable[[Sequence[int]], str]
) -> PromptAsRead:
    """Return the prompt of a data set's example, and its responses, the best first."""
    names = ["chosen", "rejected"]
    if len(example) != len(names):
        names = [f"rank {place}" for place in range(1, len(example) + 1)]
    if traits.labels:
        names = ["good" if rollout.total_reward else "not good" for rollout in example]
    elif len(example) == 1:
        names = ["response"]
    turns = [rollout.turns[0] for rollout in example]
    responses = tuple((name, text(turn.tokens)) for name, turn in zip(names, turns, strict=True))
    return PromptAsRead(text(turns[0].observation), turns[0].observation, responses)
