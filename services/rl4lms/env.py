"""`tokenizer` and `env`: what a prompt and a text may be long, and what RL4LMs' environment needs besides."""

from __future__ import annotations

from dataclasses import dataclass

from services.rl4lms.findings import Findings
from services.rl4lms.reading import Section

EPISODE_TOKENS = 512  # max_episode_length, where it is not given


@dataclass(frozen=True, slots=True)
class Env:
    num_envs: int
    prompt_tokens: int | None
    episode_tokens: int


def tokenizer(section: Section, model: str) -> tuple[int | None, Findings]:
    """The prompts' length, which only supervised files give here, and `model.tokenizer` if another's."""
    found = Findings()
    name = section.text("model_name")
    if name != model:
        found.put("model.tokenizer", name, section.key("model_name"))
    else:
        found.leave(section.key("model_name"), name, "the model's own")
    side = section.text("padding_side", "left")
    if "padding_side" in section:
        found.leave(section.key("padding_side"), side, "nothing is padded where texts are written")
    _left_cut(section, "truncation_side", found)
    as_eos = section.flag("pad_token_as_eos_token", True)
    found.leave(section.key("pad_token_as_eos_token"), as_eos, "padding never reaches the model or the loss")
    if as_eos:
        found.warn(
            "tokenizer.pad_token_as_eos_token: with RL4LMs' supervised training of causal models the end "
            "of a text is padding, and is never learned; here padding and end are kept apart"
        )
    longest = section.integer("max_length", None, least=1)
    section.finish()
    return longest, found


def env(section: Section) -> tuple[Env, Findings]:
    found = Findings()
    num_envs = section.integer("n_envs", 1, least=1)
    arguments = section.part("args", {})
    for key in ("max_prompt_length", "max_episode_length"):
        if key not in arguments:
            found.warn(f"{arguments.key(key)} is not given, which RL4LMs' trainer fails without")
    prompt = arguments.integer("max_prompt_length", None, least=1)
    if prompt is not None:
        found.put("rollout.max_prompt_tokens", prompt, arguments.key("max_prompt_length"))
    episode = arguments.integer("max_episode_length", EPISODE_TOKENS, least=1)
    _priorities(arguments, found)
    if not arguments.flag("terminate_on_eos", False):
        found.warn(
            f"{arguments.key('terminate_on_eos')} is not true: RL4LMs then writes on behind the end of a "
            "text. Here a text ends where the model ends it"
        )
    elif "terminate_on_eos" in arguments:
        found.leave(arguments.key("terminate_on_eos"), True, "always so")
    if (start := arguments.integer("context_start_token", None)) is not None:
        found.leave(arguments.key("context_start_token"), start, "the model's own")
    _left_cut(arguments, "prompt_truncation_side", found)
    arguments.finish()
    section.finish()
    return Env(num_envs, prompt, episode), found


def _priorities(arguments: Section, found: Findings) -> None:
    scale = arguments.number("priority_scale", None)
    if scale is None:
        return
    found.put("rollout.priority_scale", float(scale), arguments.key("priority_scale"))
    if scale:
        found.warn(
            f"{arguments.key('priority_scale')}: {scale:g} does nothing in RL4LMs, whose datapools give "
            "every prompt the same weight; here it holds for tasks whose prompts have weights"
        )


def _left_cut(section: Section, key: str, found: Findings) -> None:
    side = section.text(key, "left")
    if key in section:
        found.leave(section.key(key), side, "long prompts lose their beginning")
    if side == "right":
        found.warn(
            f"{section.key(key)}: right: prompts that are too long lose their beginning here, not their end"
        )
