"""What an environment asks of a model and of a task, refused before anything is started."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from learner.settings import ModelSettings
from reward_servers.server import shown_keys
from rollout_workers.environments.dialogue import Dialogue
from rollout_workers.environments.frozen_partner import MODEL, FrozenPartner
from rollout_workers.environments.partners import FROZEN, OPTIONS
from rollout_workers.environments.textworld import TextWorld
from services.model_files import ModelFiles, read_model
from services.settings import RunSettings
from services.token_counter import token_counter


def check_environment(settings: RunSettings, model: ModelFiles) -> None:
    """Whether this model can play in it.

    Raises:
        InputError: it can't end an answer, can't remember as it is asked to, or has no chat template; or the
            environment can't be made.
    """
    if not settings.plays:
        return
    settings.environment.check()
    if isinstance(settings.environment, Dialogue):
        _check_partner(settings.environment)
    _check_end(settings, model)
    environment = settings.environment
    if model.is_encoder_decoder and environment.memory is None:
        raise InputError(
            f"model.path={settings.model.path} is an encoder-decoder, which reads the context of each turn "
            f"afresh: expected environment.memory=N, the number of turns that it remembers"
        )
    if environment.template == "chat" and not _has_chat_template(model.tokenizer_folder):
        raise InputError(
            f"environment.template=chat: the tokenizer in {model.tokenizer_folder} has no chat template; set "
            f"chat_template in its tokenizer_config.json, or environment.template=plain"
        )


def environment_warnings(settings: RunSettings) -> list[str]:
    """What can be meant, and mostly is not."""
    environment, turn_gamma = settings.environment, getattr(settings.algorithm, "turn_gamma", None)
    if not isinstance(environment, TextWorld) or turn_gamma is None:
        return []
    rewards = environment.rewards
    if not rewards.progress or rewards.discount == turn_gamma:
        return []
    return [
        f"environment.rewards.discount={rewards.discount:g} discounts the progress, and "
        f"algorithm.turn_gamma={turn_gamma:g} what turns earn: only with one number for both is the best "
        f"play with that reward the best without it"
    ]


def check_environment_prompts(settings: RunSettings, prompts: Sequence[Prompt]) -> None:
    """Whether these prompts are any of its own: a text game's name the game's file.

    Raises:
        InputError: one lacks what the environment reads.
    """
    needed = settings.environment.needs_meta
    for prompt in prompts if needed else ():
        missing = [name for name in needed if prompt.meta.get(name) is None]
        if missing:
            raise InputError(
                f"environment={settings.environment_name} needs prompts with meta data {', '.join(missing)}, "
                f"and task={settings.task_name} gives: {shown_keys(prompt.meta)} (prompt {prompt.id}). "
                f"Choose the task that belongs to it, such as task={settings.environment_name}"
            )
    for prompt in prompts if settings.plays else ():
        settings.environment.check_prompt(prompt)


def _check_partner(dialogue: Dialogue) -> None:
    """A frozen partner's files, as the model's own are looked at."""
    if dialogue.partner != FROZEN:
        return
    partner = build(FrozenPartner, dialogue.partner_options, where=OPTIONS)
    model = read_model(ModelSettings(path=partner.model, revision=partner.revision), key=MODEL)
    partner.check_model(str(model.config.get("model_type")), model.is_encoder_decoder, model.window)
    token_counter(model)


def _check_end(settings: RunSettings, model: ModelFiles) -> None:
    """An answer has to end somewhere before the token limit, for the world to answer in turn."""
    if settings.rollout.stop or settings.environment.reply_end:
        return
    given = (
        model.config.get("eos_token_id"),
        _json(model.folder / "generation_config.json").get("eos_token_id"),
        _json(model.tokenizer_folder / "tokenizer_config.json").get("eos_token"),
        _json(model.tokenizer_folder / "special_tokens_map.json").get("eos_token"),
    )
    if all(end is None for end in given):
        raise InputError(
            f"environment={settings.environment_name}: neither the model in {model.folder} nor its tokenizer "
            f"has an end token, so every answer would go on for rollout.max_tokens="
            f"{settings.rollout.max_tokens} tokens. Set environment.reply_end, such as '\"\\n\"', or "
            f"rollout.stop; or eos_token in tokenizer_config.json"
        )


def _has_chat_template(folder: Path) -> bool:
    in_file = any(folder.glob("chat_template*"))
    return in_file or bool(_json(folder / "tokenizer_config.json").get("chat_template"))


def _json(file: Path) -> dict[str, Any]:
    """What a file of the model's says; nothing where it is missing or says nothing of the kind."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
