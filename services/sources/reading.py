"""Reading of prompts by a run's model: its tokenizer, its chat template, its limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.thoughts import opening_mark
from contracts.rollout import Prompt
from learner.settings import ModelSettings
from services.config.settings import RunSettings
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.tasks.base import Split
from services.tokens.prompt_tokens import PromptTokens


def chat_of(form: ChatForm | None, tokenizer: Any) -> Chat | None:
    """Return the renderer of conversations in this form; None: prompts are plain texts."""
    return None if form is None else Chat(tokenizer, form)


def opened_thought(form: ChatForm | None, model: ModelSettings) -> str | None:
    """Return the mark with which the chat template opens a thought at a prompt's end.

    It is "" for a template that opens none. None: prompts are plain texts, whose own ends tell.
    """
    chat = chat_of(form, load_tokenizer(model))
    return None if chat is None else opening_mark(chat.text([ASKED])) or ""


@dataclass(frozen=True, slots=True)
class PromptReading:
    """Converter of a run's prompts: each is read as the settings of its part say.

    Example: without a mixture, the only part is "": `PromptReading({"": PromptTokens(tokenizer)})`
    """

    of_part: Mapping[str, PromptTokens]

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        return self.of_part[prompt.part](prompt)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens, special tokens visible; all parts have one tokenizer."""
        return next(iter(self.of_part.values())).text(tokens)


def reading_of(settings: RunSettings, split: Split, tokenizer: Any = None) -> PromptReading:
    """Return the converter of a split's prompts, as training, evaluations and plans use it.

    Raises:
        InputError: a template is asked for and there is none.
    """
    tokenizer, files = tokenizer or load_tokenizer(settings.model), read_model(settings.model)
    return PromptReading(
        {
            part: PromptTokens(tokenizer, run.prompt_limit(split), chat_of(run.chat_form(files), tokenizer))
            for part, run in settings.by_task.items()
        }
    )
