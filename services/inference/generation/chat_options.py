"""The options --template, --system and --template-options of commands that use a model."""

import argparse
import json
from dataclasses import replace
from typing import Any

from contracts.conversations.chat_settings import ChatForm, ChatSettings
from contracts.errors import InputError
from contracts.settings import build
from services.inference.generation.run_model import RunModel
from services.models.chat_template import form_of


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `with_chosen_chat` reads."""
    group = parser.add_argument_group(
        "chat template", "each, unless given, the run's; the template else the tokenizer's, if any"
    )
    group.add_argument(
        "--template", metavar="FILE", help="a file in Jinja; tokenizer: its own; none: plain text"
    )
    group.add_argument("--system", metavar="TEXT", help='the system message, before all else; "": none')
    group.add_argument(
        "--template-options", metavar="JSON", help="""for the template: '{"enable_thinking": false}'"""
    )


def with_chosen_chat(model: RunModel, arguments: argparse.Namespace) -> RunModel:
    """Return the model with the command line's chat template, system message and options.

    Other options keep the model's values. An empty system message means none.

    Raises:
        InputError: options are not a JSON object, or lack a template.
    """
    template, system, options = arguments.template, arguments.system, _json_options(arguments)
    if template is None and system is None and options is None:
        return model
    chosen = {"template": template, "system": system or None, "options": options}
    chosen = {key: value for key, value in chosen.items() if value is not None}
    settings = build(ChatSettings, chosen, where="the chat template")
    chat = model.chat
    if template is not None:
        form = form_of(settings, "auto", model.files.tokenizer_folder)
        if form is None:
            return replace(model, chat=None)
        chat = replace(chat or ChatForm(ends=form.ends), template=form.template)
    if chat is None:
        if not system and options is None:  # no system message: plain text has none
            return model
        raise InputError(
            "--system and --template-options are for a chat template, and this model reads plain text: give "
            "--template tokenizer, or --template FILE, with them"
        )
    message = chat.system if system is None else system or None
    return replace(model, chat=replace(chat, system=message, options={**chat.options, **(options or {})}))


def _json_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    if arguments.template_options is None:
        return None
    try:
        parsed = json.loads(arguments.template_options)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        example = """'{"enable_thinking": false}'"""
        raise InputError(f"--template-options: got {arguments.template_options!r}; expected {example}")
    return parsed
