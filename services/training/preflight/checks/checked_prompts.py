"""Checks of all prompts of a run, with the settings of each part of a mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.conversations.chat import Chat
from contracts.rollout import Prompt
from services.config.curriculum_settings import OwnCurriculum
from services.config.settings import RunSettings
from services.data.tasks.base import ReadsAhead, Split
from services.data.tasks.mixture import InTurns
from services.data.tasks.responses import has_whole_references
from services.data.tokens.cut_prompts import CutExamples, CutPrompts, cut_examples
from services.data.tokens.prompt_tokens import tools_warnings
from services.models.files import ModelFiles, shared_window
from services.models.token_counter import CountsTokens
from services.training.loop.evaluations.policy_perplexity import texts_of
from services.training.preflight.checks.chat_checks import chat_warnings, checked_chat
from services.training.preflight.checks.environment_checks import check_environment_prompts
from services.training.preflight.checks.prompt_checks import (
    check_context,
    check_meta,
    check_references,
    graders_of,
    num_cut,
)
from services.training.preflight.checks.thought_checks import thought_warnings
from services.training.sources.own_order import OwnOrder
from services.training.sources.prompts import prompts_of

NUM_FIRST = 2  # prompts on which a user's graders are tried


@dataclass(slots=True)
class CheckedPrompts:
    """Prompts that the run can use.

    Example: for a mixture of two tasks, `num_of_parts["easy"]` is `{"train": 900, "validation": 50, …}`.
    Without a mixture, the only part is "".
    """

    num_prompts: dict[Split, int] = field(default_factory=dict)
    num_of_parts: dict[str, dict[Split, int]] = field(default_factory=dict)
    cut: list[CutPrompts] = field(default_factory=list)
    examples: list[CutExamples] = field(default_factory=list)  # cut examples of supervised training
    first: dict[str, Sequence[Prompt]] = field(default_factory=dict)  # first prompts of each part
    of_chat: list[str] = field(default_factory=list)  # warnings about the chat templates


@dataclass(frozen=True, slots=True)
class Reading:
    """A model's files, its counter of tokens, and the most tokens of a prompt in each split."""

    model: ModelFiles
    count: CountsTokens
    room: Mapping[Split, int | None]


def check_prompts(settings: RunSettings, splits: Sequence[Split], reading: Reading) -> CheckedPrompts:
    """Reject prompts that the run can't use; count prompts and cut prompts.

    Raises:
        InputError: the data can't be read, or a prompt is too long or lacks what a grader needs.
    """
    runs, model = settings.by_task, reading.model
    chats = {
        part: checked_chat(run.chat_form(model), run.model, turn_by_turn=run.plays)
        for part, run in runs.items()
    }
    checked = CheckedPrompts()
    for part, run in runs.items():
        if isinstance(run.task, ReadsAhead):
            for split in splits:
                ahead = run.task.first_prompts(split)
                _check(run, split, ahead, len(ahead), reading, chats[part])
    for split in splits:
        prompts = prompts_of(settings.task, settings.task_name, split)
        most = None if split == "train" else settings.evaluation.num_prompts
        checked.num_prompts[split] = len(prompts)
        for part, run in runs.items():
            part_prompts, num_asked = prompts, min(len(prompts), most or len(prompts))
            if isinstance(prompts, InTurns):
                num_asked = sum(place < num_asked for place in prompts.places(part))
                part_prompts = prompts.of_part(part)
            cut = _check(run, split, part_prompts, num_asked, reading, chats[part])
            checked.cut.append(replace(cut, part=part))
            checked.num_of_parts.setdefault(part, {})[split] = len(part_prompts)
            checked.first.setdefault(part, part_prompts[:NUM_FIRST])
            if not run.plays:
                checked.of_chat += tools_warnings(chats[part], part_prompts)
            if split == "train" and isinstance(run.curriculum, OwnCurriculum):
                order = OwnOrder(run.curriculum, part_prompts, run.seed)
                order.rehearse(run.rollout.prompts_per_iteration, run.group_size)
            if split == "train" and run.demonstrates:
                whole = has_whole_references(run.task)
                cut_at = run.prompt_limit("train"), run.rollout.max_tokens, shared_window(reading.model)
                checked.examples.append(
                    cut_examples(part_prompts, *cut_at, reading.count, chats[part], whole)
                )
    warnings = [warning for part in runs for warning in chat_warnings(chats[part], model)]
    warnings += [
        warning for part, run in runs.items() for warning in thought_warnings(chats[part], run.reward)
    ]
    checked.of_chat = list(dict.fromkeys([*checked.of_chat, *warnings]))
    return checked


def _check(
    settings: RunSettings,
    split: Split,
    prompts: Sequence[Prompt],
    num_asked: int,
    reading: Reading,
    chat: Chat | None,
) -> CutPrompts:
    """Reject prompts that the run can't use; return how many of the first `num_asked` are cut."""
    evaluation, graders = settings.evaluation, graders_of(settings.reward, settings.metrics)
    imitated_by = settings.algorithm_name if settings.demonstrates else None
    check_references(prompts, evaluation, graders, imitated_by)
    check_meta(prompts, graders, settings.task_name)
    if split != "train" and evaluation.perplexity_stride is not None:
        texts_of(prompts, evaluation.perplexity_meta)
    check_environment_prompts(settings.environment, settings.environment_name, settings.task_name, prompts)
    limit, room = settings.prompt_limit(split), reading.room[split]
    if settings.plays:
        check_context(room, limit)
        if chat is not None:
            for prompt in prompts:
                if prompt.messages:
                    chat.of_prompt(prompt)
        return CutPrompts(split, num_asked, 0, limit)
    num_long = num_cut(prompts, num_asked, limit, room, reading.count, chat)
    return CutPrompts(split, num_asked, num_long, limit)
