"""Check that an environment, the model and the task's prompts fit together."""

from collections.abc import Sequence

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings
from reward_servers.needs import shown_keys
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.dialogue import Dialogue
from rollout_workers.environments.frozen_partner import MODEL, FrozenPartner
from rollout_workers.environments.partners import FROZEN, OPTIONS
from rollout_workers.environments.program import ProgramSettings
from rollout_workers.environments.textworld import TextWorld
from rollout_workers.settings import RolloutSettings
from services.models.adapters import for_use
from services.models.chat_template import has_template, json_of
from services.models.files import ModelFiles, read_model
from services.models.token_counter import token_counter


def check_environment(
    environment: EnvironmentSettings, name: str, rollout: RolloutSettings, path: str, model: ModelFiles
) -> None:
    """Check that the model can play in an environment of several turns.

    Args:
        environment: settings in the form in which the model reads them.
        name: name of the environment, for messages.
        path: path of the model, for messages.

    Raises:
        InputError: the model can't end an answer or can't use the memory, or the environment can't be made.
    """
    environment.check()
    if isinstance(environment, Dialogue) and environment.partner == FROZEN:
        _check_partner(build(FrozenPartner, environment.partner_options, where=OPTIONS), environment.template)
    if isinstance(environment, ProgramSettings):
        _check_program(rollout, path, model)
        if environment.partner_options is not None:
            _check_partner(environment.partner_options, environment.template)
        return
    _check_end(environment, name, rollout, model)
    if model.is_encoder_decoder and environment.memory is None:
        raise InputError(
            f"model.path={path} is an encoder-decoder, which reads the context of each turn "
            f"anew; expected environment.memory=N, the number of turns that it remembers"
        )


def environment_warnings(environment: EnvironmentSettings, algorithm: Algorithm) -> list[str]:
    """Warn of a text game that discounts progress differently from turns."""
    turn_gamma = algorithm.turn_discount
    if not isinstance(environment, TextWorld) or turn_gamma is None:
        return []
    rewards = environment.rewards
    if not rewards.progress or rewards.discount == turn_gamma:
        return []
    return [
        f"environment.rewards.discount={rewards.discount:g} discounts progress, and "
        f"algorithm.turn_gamma={turn_gamma:g} discounts turns. If they differ, the best play with that "
        f"reward may differ from the best play without it"
    ]


def check_environment_prompts(
    environment: EnvironmentSettings, name: str, task_name: str, prompts: Sequence[Prompt]
) -> None:
    """Check that the environment can play these prompts. A text game's prompt must name the game's file.

    Raises:
        InputError: a prompt lacks meta data that the environment reads.
    """
    needed = environment.needs_meta
    for prompt in prompts if needed else ():
        missing = [key for key in needed if prompt.meta.get(key) is None]
        if missing:
            raise InputError(
                f"environment={name} needs prompts with meta data {', '.join(missing)}, "
                f"but task={task_name} gives: {shown_keys(prompt.meta)} (prompt {prompt.id}). "
                f"Choose the environment's task, such as task={name}"
            )
    for prompt in prompts:
        environment.check_prompt(prompt)


def _check_partner(partner: FrozenPartner, template: str) -> None:
    """Check a frozen partner's files like the model's files."""
    model = read_model(
        for_use(ModelSettings(path=partner.model, revision=partner.revision), key=MODEL), key=MODEL
    )
    partner.check_model(str(model.config.get("model_type")), model.is_encoder_decoder, model.window)
    partner.chat_form(template == "chat", has_template(model.tokenizer_folder))
    token_counter(model)


def _check_program(rollout: RolloutSettings, path: str, model: ModelFiles) -> None:
    """Reject settings that programs can't use, because their calls come in turns and at their own speed."""
    if model.is_encoder_decoder:
        raise InputError(
            f"model.path={path} is an encoder-decoder, which keeps no earlier answers: expected a causal "
            "model with environment=program"
        )
    if rollout.deterministic:
        raise InputError(
            "rollout.deterministic=true with environment=program: the programs' speed decides which calls "
            "the engine computes together; expected rollout.deterministic=false"
        )


def _check_end(
    environment: EnvironmentSettings, name: str, rollout: RolloutSettings, model: ModelFiles
) -> None:
    """Reject a model without an end token, because its answers would all run to the token limit."""
    if rollout.stop or environment.reply_end:
        return
    ends = (
        model.config.get("eos_token_id"),
        json_of(model.folder / "generation_config.json").get("eos_token_id"),
        json_of(model.tokenizer_folder / "tokenizer_config.json").get("eos_token"),
        json_of(model.tokenizer_folder / "special_tokens_map.json").get("eos_token"),
    )
    if all(end is None for end in ends):
        raise InputError(
            f"environment={name}: neither the model in {model.folder} nor its tokenizer "
            f"has an end token, so every answer would go on for rollout.max_tokens="
            f"{rollout.max_tokens} tokens. Set environment.reply_end, such as '\"\\n\"', or "
            f"rollout.stop; or eos_token in tokenizer_config.json"
        )
