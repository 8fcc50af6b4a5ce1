"""The first training prompt as the model reads it, and the columns from which prompts come."""

from dataclasses import dataclass

from contracts.rollout import Prompt
from rollout_workers.environments.dialogue import Dialogue
from services.config.settings import RunSettings
from services.models.tokenizer import load_tokenizer
from services.sources.annotated_data import open_source
from services.sources.reading import prompt_tokens
from services.tasks.base import TellsColumns


@dataclass(frozen=True, slots=True)
class PromptAsRead:
    """A prompt as the model reads it. Example: `PromptAsRead("<s>3 5", (1, 8, 10))`"""

    text: str  # special tokens visible
    tokens: tuple[int, ...]


def first_prompt(settings: RunSettings, prompt: Prompt | None) -> PromptAsRead | None:
    """Return the first training prompt as the model reads it; None where an environment writes it.

    Args:
        prompt: the task's; None: training learns from a data set alone.
    """
    if settings.plays and not isinstance(settings.environment, Dialogue):
        return None
    tokenizer = load_tokenizer(settings.model)
    to_tokens = prompt_tokens(settings, "train", tokenizer)
    if prompt is not None:
        tokens = to_tokens(prompt)
    else:
        tokens = open_source(settings, tokenizer).next(1)[0].turns[0].observation
    return PromptAsRead(to_tokens.text(tokens), tokens)


def columns(settings: RunSettings) -> dict[str, str]:
    """Return a line about the columns of the task's rows; none for tasks whose columns are known."""
    return {"columns": settings.task.told()} if isinstance(settings.task, TellsColumns) else {}
