"""The options --template, --system and --template-options of the commands that use a model."""

import argparse
import json
from dataclasses import replace
from typing import Any

from contracts.conversations.chat_settings import ChatSettings
from contracts.errors import InputError
from contracts.settings import build
from services.generation.run_model import RunModel
from services.models.chat_template import form_of


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `with_chosen_chat` reads."""
    group = parser.add_argument_group(
        "chat template", "unless given, the run's; else the tokenizer's, if any"
    )
    group.add_argument(
        "--template", metavar="FILE", help="a file in Jinja; tokenizer: its own; none: plain text"
    )
    group.add_argument("--system", metavar="TEXT", help="the system message, before everything else")
    group.add_argument(
        "--template-options", metavar="JSON", help="""for the template: '{"enable_thinking": false}'"""
    )


def with_chosen_chat(model: RunModel, arguments: argparse.Namespace) -> RunModel:
    """Return the model with the command line's chat template, system message and options in place of its own.

    Raises:
        InputError: options are no JSON object, or are given where there is no template.
    """
    template, system, options = arguments.template, arguments.system, _json_options(arguments)
    if template is None and system is None and options is None:
        return model
    given = {"template": template, "system": system, "options": options}
    given = {key: value for key, value in given.items() if value is not None}
    asked = build(ChatSettings, given, where="the chat template")
    if template is not None:
        return replace(model, chat=form_of(asked, "auto", model.files.tokenizer_folder))
    if model.chat is None:
        raise InputError(
            "--system and --template-options are for a chat template, and this model reads plain text: give "
            "--template tokenizer, or --template FILE, with them"
        )
    merged = {**model.chat.options, **(options or {})}
    return replace(model, chat=replace(model.chat, system=system or model.chat.system, options=merged))


def _json_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    if arguments.template_options is None:
        return None
    try:
        found = json.loads(arguments.template_options)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        example = """'{"enable_thinking": false}'"""
        raise InputError(f"--template-options: got {arguments.template_options!r}; expected {example}")
    return found
