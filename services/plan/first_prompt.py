"""The first training prompts as the model reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.rollout import Prompt
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


def first_prompts(settings: RunSettings, prompts: Mapping[str, Prompt]) -> dict[str, PromptAsRead]:
    """Return the first training prompt as the model reads it, of each part of a mixture.

    The only task's is under "". There are none where an environment writes them.

    Args:
        prompts: the task's; {}: training learns from a data set alone.
    """
    if settings.plays and not isinstance(settings.environment, Dialogue):
        return {}
    tokenizer = load_tokenizer(settings.model)
    found = {}
    for part, to_tokens in reading_of(settings, "train", tokenizer).of_part.items():
        if prompts:
            tokens = to_tokens(prompts[part])
        else:
            tokens = open_source(settings, tokenizer).next(1)[0].turns[0].observation
        found[part] = PromptAsRead(to_tokens.text(tokens), tokens)
    return found
