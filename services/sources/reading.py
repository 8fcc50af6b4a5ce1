"""Reading of prompts by a run's model: its tokenizer, its chat template, its limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.chat import Chat
from contracts.rollout import Prompt
from services.config.settings import RunSettings
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.tasks.base import Split
from services.tokens.prompt_tokens import PromptTokens


def chat_of(settings: RunSettings, tokenizer: Any) -> Chat | None:
    """Return the renderer of a run's conversations; None: its prompts are plain texts.

    Raises:
        InputError: a template is asked for and there is none.
    """
    form = settings.chat_form(read_model(settings.model))
    return None if form is None else Chat(tokenizer, form)


@dataclass(frozen=True, slots=True)
class TokensOfParts:
    """Converter of a mixture's prompts: each is read as its part says."""

    of_part: Mapping[str, PromptTokens]

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        return self.of_part[prompt.part](prompt)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens, special tokens visible; all parts have one tokenizer."""
        return next(iter(self.of_part.values())).text(tokens)


def prompt_tokens(settings: RunSettings, split: Split, tokenizer: Any = None) -> PromptTokens:
    """Return the converter of a split's prompts of one task, as training, evaluations and plans use it."""
    tokenizer = tokenizer or load_tokenizer(settings.model)
    return PromptTokens(tokenizer, settings.prompt_limit(split), chat_of(settings, tokenizer))


def tokens_of(settings: RunSettings, split: Split, tokenizer: Any = None) -> PromptTokens | TokensOfParts:
    """Return the converter of a split's prompts, of one task or of a mixture."""
    tokenizer = tokenizer or load_tokenizer(settings.model)
    if not settings.parts:
        return prompt_tokens(settings, split, tokenizer)
    return TokensOfParts({name: prompt_tokens(run, split, tokenizer) for name, run in settings.parts.items()})
