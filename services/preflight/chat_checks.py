"""Checks of a chat template before anything starts: whether it is there, takes turns, and ends answers."""

from contracts.chat import Chat
from contracts.vocabulary import end_tokens
from rollout_workers.turn_texts import ChatTexts
from services.config.settings import RunSettings
from services.models.chat_template import json_of
from services.models.files import ModelFiles
from services.models.tokenizer import load_tokenizer


def checked_chat(settings: RunSettings, model: ModelFiles) -> Chat | None:
    """Return the renderer of a run's conversations; None: its prompts are plain texts.

    Raises:
        InputError: a template is asked for and there is none, or it can't be continued turn by turn.
    """
    form = settings.chat_form(model)
    if form is None:
        return None
    chat = Chat(load_tokenizer(settings.model), form)
    if settings.plays:
        ChatTexts(chat)
    return chat


def chat_warnings(chat: Chat | None, settings: RunSettings, model: ModelFiles) -> list[str]:
    """Warn of answers that do not end where the template ends them, and of prompts that change every day."""
    if chat is None:
        return []
    found = []
    mark, name = chat.end_token, "model.chat.date"
    given = json_of(model.folder / "generation_config.json").get("eos_token_id")
    ends = end_tokens(given or model.config.get("eos_token_id"), chat.eos_token_id)
    if mark is not None and mark not in ends:
        found.append(
            f"the chat template ends an answer with {chat.shown(mark)!r}, and the model generates on behind "
            f"it: its generation_config.json names other end tokens. Add {mark} to eos_token_id there"
        )
    if chat.names_today and settings.model.chat.date is None:
        found.append(
            f"the chat template writes today's date into every prompt, so that a run resumed tomorrow reads "
            f"others: {name}=YYYY-MM-DD keeps one"
        )
    return found
