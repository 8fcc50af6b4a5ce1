"""The first training prompts as the model reads it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contracts.rollout import Prompt, Rollout
from learner.algorithms.base import Traits
from rollout_workers.environments.dialogue import Dialogue
from services.config.settings import RunSettings
from services.models.tokenizer import load_tokenizer
from services.sources.annotated_data import open_source
from services.sources.reading import reading_of


@dataclass(frozen=True, slots=True)
class PromptAsRead:
    """A prompt as the model reads it. Example: `PromptAsRead("<s>3 5", (1, 8, 10))`"""

    text: str  # special tokens visible
    tokens: tuple[int, ...]
    responses: tuple[tuple[str, str], ...] = ()  # of a data set: what each is, and its text


def first_prompts(settings: RunSettings, prompts: Mapping[str, Prompt]) -> dict[str, PromptAsRead]:
    """Return the first training prompt as the model reads it, of each part of a mixture.

    The only task's is under "". There are none where an environment writes them.

    Args:
        prompts: the task's; {}: training learns from a data set alone.
    """
    if settings.plays and not isinstance(settings.environment, Dialogue):
        return {}
    tokenizer, traits = load_tokenizer(settings.model), settings.algorithm.traits
    found = {}
    for part, to_tokens in reading_of(settings, "train", tokenizer).of_part.items():
        if prompts:
            tokens = to_tokens(prompts[part])
            found[part] = PromptAsRead(to_tokens.text(tokens), tokens)
        else:
            found[part] = _of_data(traits, open_source(settings, tokenizer).next(1), to_tokens.text)
    return found


def _of_data(
    traits: Traits, example: Sequence[Rollout], text: Callable[[Sequence[int]], str]
) -> PromptAsRead:
    """Return a data set's example: its prompt, and its responses, the best first."""
    names = ["chosen", "rejected"]
    if len(example) != len(names):
        names = [f"rank {place}" for place in range(1, len(example) + 1)]
    if traits.labels:
        names = ["good" if each.total_reward else "not good" for each in example]
    elif len(example) == 1:
        names = ["response"]
    turns = [each.turns[0] for each in example]
    told = tuple((name, text(turn.tokens)) for name, turn in zip(names, turns, strict=True))
    return PromptAsRead(text(turns[0].observation), turns[0].observation, told)
