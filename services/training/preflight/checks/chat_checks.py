"""Checks of a chat template before the start: whether it exists, takes turns and ends answers."""

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.vocabulary import end_tokens
from learner.settings import ModelSettings
from rollout_workers.turn_texts import ChatTexts
from services.models.chat_template import ends_of
from services.models.files import ModelFiles
from services.models.tokenizer import load_tokenizer


def checked_chat(form: ChatForm | None, model: ModelSettings, *, turn_by_turn: bool) -> Chat | None:
    """Return the renderer of a run's conversations; None if its prompts are plain texts.

    Raises:
        InputError: the template can't be continued turn by turn, and the environment has several turns.
    """
    chat = None if form is None else Chat(load_tokenizer(model), form)
    if chat is not None and turn_by_turn:
        ChatTexts(chat)
    return chat


def chat_warnings(chat: Chat | None, model: ModelFiles) -> list[str]:
    """Warn if answers do not end where the template ends them, or if prompts contain today's date."""
    if chat is None:
        return []
    warnings = []
    mark, name = chat.end_token, "model.chat.date"
    ends = end_tokens(ends_of(model.folder, model.config), chat.eos_token_id)
    if mark is not None and mark not in ends:
        warnings.append(
            f"the chat template ends an answer with {chat.shown(mark)!r}, but the model writes on after "
            f"it, because its generation_config.json names other end tokens. Add {mark} to eos_token_id there"
        )
    if chat.changes_daily:
        warnings.append(
            f"the chat template writes today's date into every prompt, so that a run resumed tomorrow reads "
            f"other prompts: {name}=YYYY-MM-DD keeps one date"
        )
    return warnings
