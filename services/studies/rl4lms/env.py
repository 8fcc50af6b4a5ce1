"""Translate `tokenizer` and `env`: limits of prompts and texts, and the side of truncation."""

from __future__ import annotations

from dataclasses import dataclass

from services.data.tasks.base import Side
from services.data.tokens.prompt_tokens import SIDES
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import Section

EPISODE_TOKENS = 512  # default of max_episode_length


@dataclass(frozen=True, slots=True)
class CutSide:
    """A prompt's side of truncation, with its source in the file.

    Example: `CutSide("left", "tokenizer.truncation_side", "RL4LMs' default, left")`
    """

    side: Side
    key: str
    source_value: str


@dataclass(frozen=True, slots=True)
class Env:
    num_envs: int
    said_envs: str
    prompt_tokens: int | None
    episode_tokens: int
    cut: CutSide  # the side on which training prompts are cut


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Limits of prompts; RL files have them in `env` and in the policy's arguments."""

    max_length: int | None
    cut: CutSide


def tokenizer(section: Section, model: str) -> tuple[Tokenizer, Findings]:
    """Read the section, and `model.tokenizer` if it differs from the model's."""
    findings = Findings()
    name = section.text("model_name")
    if name != model:
        findings.put("model.tokenizer", name, section.key("model_name"))
    else:
        findings.leave(section.key("model_name"), name, "taken from the model")
    padding = section.text("padding_side", "left")
    if "padding_side" in section:
        findings.leave(section.key("padding_side"), padding, "Whetstone writes texts without padding")
    cut = read_side(section, "truncation_side")
    as_eos = section.flag("pad_token_as_eos_token", True)
    source_value = section.says("pad_token_as_eos_token", True)
    findings.leave(
        section.key("pad_token_as_eos_token"), source_value, "padding never reaches the model or the loss"
    )
    if as_eos:
        findings.warn(
            "tokenizer.pad_token_as_eos_token: in RL4LMs' supervised training of causal models the end token "
            "is also the padding, so the model never learns it. Whetstone keeps end and padding apart"
        )
    longest = section.integer("max_length", None, least=1)
    section.finish()
    return Tokenizer(longest, cut), findings


def env(section: Section) -> tuple[Env, Findings]:
    findings = Findings()
    num_envs, source_value = section.integer("n_envs", 1, least=1), section.says("n_envs", 1)
    arguments = section.part("args", {})
    for key in ("max_prompt_length", "max_episode_length"):
        if key not in arguments:
            findings.warn(f"{arguments.key(key)} is missing, and RL4LMs' trainer fails without it")
    prompt = arguments.integer("max_prompt_length", None, least=1)
    if prompt is not None:
        findings.put("rollout.max_prompt_tokens", prompt, arguments.key("max_prompt_length"))
    episode = arguments.integer("max_episode_length", EPISODE_TOKENS, least=1)
    _priorities(arguments, findings)
    if not arguments.flag("terminate_on_eos", False):
        said_end = arguments.says("terminate_on_eos", False)
        findings.put("rollout.ignore_eos", True, arguments.key("terminate_on_eos"), said_end)
        findings.warn(
            f"{arguments.key('terminate_on_eos')} is not true, so RL4LMs pads texts after their end. In "
            "Whetstone the model continues to write; rollout.ignore_eos=false ends a text at its end token"
        )
    elif "terminate_on_eos" in arguments:
        findings.leave(arguments.key("terminate_on_eos"), True, "Whetstone's default")
    if (start := arguments.integer("context_start_token", None)) is not None:
        findings.leave(arguments.key("context_start_token"), start, "taken from the model")
    cut = read_side(arguments, "prompt_truncation_side")
    arguments.finish()
    section.finish()
    return Env(num_envs, source_value, prompt, episode, cut), findings


def _priorities(arguments: Section, findings: Findings) -> None:
    scale = arguments.number("priority_scale", None)
    if scale is None:
        return
    findings.put("rollout.priority_scale", float(scale), arguments.key("priority_scale"))
    if scale:
        findings.warn(
            f"{arguments.key('priority_scale')}: {scale:g} does nothing in RL4LMs, because its datapools "
            "give every prompt the same weight. Whetstone uses it for tasks whose prompts have weights"
        )


def read_side(section: Section, key: str) -> CutSide:
    """Read the side of truncation of long prompts; the default is left."""
    side: Side = section.text(key, "left")
    if side not in SIDES:
        raise section.refuse(key, "expected left or right")
    return CutSide(side, section.key(key), section.says(key, "left"))


def cut_prompts(train: CutSide, held_out: CutSide) -> Findings:
    """Translate to `task.truncation_side`, one word if training and evaluation agree."""
    findings = Findings()
    if train.side == held_out.side:
        findings.put("task.truncation_side", train.side, train.key, train.source_value)
        return findings
    sides = {"train": train.side, "validation": held_out.side, "test": held_out.side}
    keys, source_value = f"{train.key}, {held_out.key}", f"{train.source_value}, {held_out.source_value}"
    findings.put("task.truncation_side", sides, keys, source_value)
    findings.warn(
        f"{train.key} is {train.side} and {held_out.key} is {held_out.side}, so RL4LMs trains on one end of "
        "a long prompt and evaluates on the other. The experiment does the same; "
        f"task.truncation_side={train.side} uses one side for both"
    )
    return findings
