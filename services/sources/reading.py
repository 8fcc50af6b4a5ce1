"""Reading of prompts by a run's model: its tokenizer, its chat template, its limits."""

from typing import Any

from contracts.chat import Chat
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


def prompt_tokens(settings: RunSettings, split: Split, tokenizer: Any = None) -> PromptTokens:
    """Return the converter of a split's prompts, as training, evaluations and plans use it."""
    tokenizer = tokenizer or load_tokenizer(settings.model)
    return PromptTokens(tokenizer, settings.prompt_limit(split), chat_of(settings, tokenizer))
