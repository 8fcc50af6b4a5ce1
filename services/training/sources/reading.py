"""Conversion of prompts to tokens with a run's tokenizer, chat template and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.thoughts import opening_mark
from contracts.rollout import Prompt
from learner.settings import ModelSettings
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from services.data.tokens.prompt_tokens import PromptTokens
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer


def chat_of(form: ChatForm | None, tokenizer: Any) -> Chat | None:
    """Return the renderer of conversations in this form; None if prompts are plain texts."""
    return None if form is None else Chat(tokenizer, form)


def opened_thought(form: ChatForm | None, model: ModelSettings) -> str | None:
    """Return the mark with which the chat template opens a thought at a prompt's end.

    Return "" if the template opens no thought, None if prompts are plain texts, which may end in a mark.
    """
    chat = chat_of(form, load_tokenizer(model))
    return None if chat is None else opening_mark(chat.text([ASKED])) or ""


@dataclass(frozen=True, slots=True)
class PromptReading:
    """Converter of a run's prompts to tokens, with the settings of each prompt's part.

    Example: without a mixture, the only part is "": `PromptReading({"": PromptTokens(tokenizer)})`
    """

    of_part: Mapping[str, PromptTokens]

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        return self.of_part[prompt.part](prompt)

    @property
    def is_chat(self) -> bool:
        """Tell whether a chat template renders the prompts of any part."""
        return any(tokens.chat is not None for tokens in self.of_part.values())

    def uncut(self) -> "PromptReading":
        """Return the converter of whole prompts, without a limit."""
        return PromptReading({part: tokens.uncut() for part, tokens in self.of_part.items()})

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens with visible special tokens. All parts share one tokenizer."""
        return next(iter(self.of_part.values())).text(tokens)


def reading_of(settings: RunSettings, split: Split, tokenizer: Any = None) -> PromptReading:
    """Return the converter of a split's prompts for training, evaluations and plans.

    Raises:
        InputError: the settings require a template, but the tokenizer has none.
    """
    tokenizer, files = tokenizer or load_tokenizer(settings.model), read_model(settings.model)
    return PromptReading(
        {
            part: PromptTokens(tokenizer, run.prompt_limit(split), chat_of(run.chat_form(files), tokenizer))
            for part, run in settings.by_task.items()
        }
    )
