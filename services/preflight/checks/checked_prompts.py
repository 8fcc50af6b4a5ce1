"""Checks of all prompts of a run: those of one task, or of each part of a mixture as its own settings say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.conversations.chat import Chat
from contracts.rollout import Prompt
from services.config.settings import RunSettings
from services.loop.evaluations.policy_perplexity import texts_of
from services.models.files import ModelFiles, shared_window
from services.models.token_counter import CountsTokens
from services.preflight.checks.chat_checks import chat_warnings, checked_chat
from services.preflight.checks.environment_checks import check_environment_prompts
from services.preflight.checks.prompt_checks import (
    check_context,
    check_meta,
    check_references,
    graders_of,
    num_cut,
)
from services.preflight.checks.thought_checks import thought_warnings
from services.sources.prompts import prompts_of
from services.tasks.base import ReadsAhead, Split
from services.tasks.mixture import InTurns
from services.tasks.responses import has_whole_references
from services.tokens.cut_prompts import CutExamples, CutPrompts, cut_examples
from services.tokens.prompt_tokens import tools_warnings

NUM_FIRST = 2  # prompts on which a user's graders are tried


@dataclass(slots=True)
class CheckedPrompts:
    """Prompts that the run can use.

    Example: of a mixture of two tasks, `num_of_parts["easy"]` is `{"train": 900, "validation": 50, …}`.
    Without a mixture, the only part is "".
    """

    num_prompts: dict[Split, int] = field(default_factory=dict)
    num_of_parts: dict[str, dict[Split, int]] = field(default_factory=dict)
    cut: list[CutPrompts] = field(default_factory=list)
    examples: list[CutExamples] = field(default_factory=list)  # supervised training's
    first: dict[str, Sequence[Prompt]] = field(default_factory=dict)  # of each part, of the first split
    of_chat: list[str] = field(default_factory=list)  # warnings about the chat templates


@dataclass(frozen=True, slots=True)
class Reading:
    """A model's way of reading prompts: its files, its counts of tokens, and the room for each split's."""

    model: ModelFiles
    count: CountsTokens
    room: Mapping[Split, int | None]


def check_prompts(settings: RunSettings, splits: Sequence[Split], reading: Reading) -> CheckedPrompts:
    """Refuse prompts that the run can't use; count them, and those that are cut.

    Raises:
        InputError: the data can't be read, or a prompt is too long or lacks what a grader needs.
    """
    runs, model = settings.by_task, reading.model
    chats = {
        part: checked_chat(run.chat_form(model), run.model, turn_by_turn=run.plays)
        for part, run in runs.items()
    }
    found = CheckedPrompts()
    for part, run in runs.items():
        if isinstance(run.task, ReadsAhead):
            for split in splits:
                ahead = run.task.first_prompts(split)
                _check(run, split, ahead, len(ahead), reading, chats[part])
    for split in splits:
        prompts = prompts_of(settings.task, settings.task_name, split)
        most = None if split == "train" else settings.evaluation.num_prompts
        found.num_prompts[split] = len(prompts)
        for part, run in runs.items():
            own, num_asked = prompts, min(len(prompts), most or len(prompts))
            if isinstance(prompts, InTurns):
                num_asked = sum(place < num_asked for place in prompts.places(part))
                own = prompts.of_part(part)
            cut = _check(run, split, own, num_asked, reading, chats[part])
            found.cut.append(replace(cut, part=part))
            found.num_of_parts.setdefault(part, {})[split] = len(own)
            found.first.setdefault(part, own[:NUM_FIRST])
            if not run.plays:
                found.of_chat += tools_warnings(chats[part], own)
            if split == "train" and run.demonstrates:
                whole = has_whole_references(run.task)
                cut_at = run.prompt_limit("train"), run.rollout.max_tokens, shared_window(reading.model)
                found.examples.append(cut_examples(own, *cut_at, reading.count, chats[part], whole))
    warnings = [each for part in runs for each in chat_warnings(chats[part], model)]
    warnings += [each for part, run in runs.items() for each in thought_warnings(chats[part], run.reward)]
    found.of_chat = list(dict.fromkeys([*found.of_chat, *warnings]))
    return found


def _check(
    settings: RunSettings,
    split: Split,
    prompts: Sequence[Prompt],
    num_asked: int,
    reading: Reading,
    chat: Chat | None,
) -> CutPrompts:
    """Refuse prompts that the run can't use; return how many of the first `num_asked` are cut."""
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
    found = num_cut(prompts, num_asked, limit, room, reading.count, chat)
    return CutPrompts(split, num_asked, found, limit)
