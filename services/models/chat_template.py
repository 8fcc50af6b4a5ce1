"""Decide from a tokenizer's files whether its model reads prompts by a chat template."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.conversations.chat_settings import AUTO, NONE, ChatForm, ChatSettings
from contracts.errors import InputError
from contracts.vocabulary import end_tokens


def form_of(chat: ChatSettings, template: str, folder: Path) -> ChatForm | None:
    """Return a model's chat template with its options; None: the model reads plain text.

    Args:
        template: the value of `environment.template`: plain, chat, or auto.
        folder: the tokenizer's.

    Raises:
        InputError: a required template is missing or unreadable, or a system message or options lack a
            template.
    """
    if template == "plain" or chat.template == NONE:
        options = [name for name in ("system", "options") if getattr(chat, name)]
        if options:
            raise InputError(
                f"model.chat.{options[0]} needs a chat template, but prompts are read as plain text here: "
                f"set model.chat.template=tokenizer or to a template file, or remove model.chat.{options[0]}"
            )
        return None
    form = replace(chat.form(), ends=ends_of(folder))
    if form.template is not None or has_template(folder):
        return form
    if template == "chat" or chat.template != AUTO:
        setting = (
            "environment.template=chat" if chat.template == AUTO else f"model.chat.template={chat.template}"
        )
        raise InputError(
            f"{setting}: the tokenizer in {folder} has no chat template; set chat_template in its "
            f"tokenizer_config.json, give model.chat.template=FILE, or leave it out"
        )
    if chat.system is not None or chat.options:
        raise InputError(
            f"model.chat.system and model.chat.options are for a chat template, and the tokenizer in "
            f"{folder} has none; expected model.chat.template=FILE with them, or leave them out"
        )
    return None


def has_template(folder: Path) -> bool:
    """Return whether the tokenizer in a folder has a chat template."""
    in_file = any(folder.glob("chat_template*")) or any(folder.glob("additional_chat_templates/*"))
    return in_file or bool(json_of(folder / "tokenizer_config.json").get("chat_template"))


def ends_of(folder: Path, config: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """Return a model's stop tokens from its generation settings, else from its configuration."""
    ends = json_of(folder / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = (config or json_of(folder / "config.json")).get("eos_token_id")
    return end_tokens(ends, None)


def json_of(file: Path) -> dict[str, Any]:
    """Return the object in a model's file; empty if the file is missing or holds no object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
