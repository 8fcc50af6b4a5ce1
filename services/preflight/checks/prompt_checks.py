"""Check a task's prompts: their references, meta data and lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.conversations.chat import Chat
from contracts.errors import InputError
from contracts.rollout import Prompt
from reward_servers.needs import has_reference, missing_keys, shown_keys
from reward_servers.part_checks import needs_meta, needs_references
from reward_servers.settings import Part
from services.config.evaluation_settings import EvaluationSettings
from services.models.token_counter import CountsTokens
from services.tokens.cut_conversations import fitted
from services.tokens.cut_prompts import lengths_of
from services.tokens.prompt_limit import PromptLimit

LEAST_CONTEXT = 4  # tokens; an environment could hardly say less


@dataclass(frozen=True, slots=True)
class Grader:
    """A reward or a metric, and its key in the configuration.

    Example: `Grader("metrics", "metric", Part("rouge"))`, as text "metrics=rouge"
    """

    key: str
    kind: str
    part: Part

    def __str__(self) -> str:
        return f"{self.key}={self.part.name}"


def graders_of(rewards: Sequence[Part], metrics: Sequence[Part]) -> list[Grader]:
    """Return all that judges a run's texts."""
    found = [Grader("reward", "reward", part) for part in rewards]
    return found + [Grader("metrics", "metric", part) for part in metrics]


def check_references(
    prompts: Sequence[Prompt],
    evaluation: EvaluationSettings,
    graders: Sequence[Grader],
    imitated_by: str | None,
) -> None:
    """Check that prompts have references, where something reads them.

    Args:
        imitated_by: the algorithm that learns to write references; None: it learns from something else.

    Raises:
        InputError: with the first prompt that has none, and with what needs one.
    """
    lacking = next((prompt for prompt in prompts if not has_reference(prompt.references)), None)
    if lacking is None:
        return
    given = "only empty references" if lacking.references else "no reference"
    remedy = (
        "Leave this prompt out of the data"
        if lacking.references
        else "With task=prompts, name the column of references: task.references_column=NAME"
    )
    if evaluation.perplexity_stride is not None and evaluation.perplexity_meta is None:
        raise InputError(
            f"evaluation.perplexity_stride needs a reference for every prompt, and prompt {lacking.id} has "
            f"{given}. {remedy}"
        )
    if imitated_by is not None:
        raise InputError(
            f"algorithm={imitated_by} learns to write references, and prompt {lacking.id} has "
            f"{given}. {remedy}"
        )
    for grader in graders:
        if needs_references(grader.kind, grader.part):
            raise InputError(
                f"{grader} compares with references, and prompt {lacking.id} has {given}. {remedy}"
            )


def check_meta(prompts: Sequence[Prompt], graders: Sequence[Grader], task_name: str) -> None:
    """Check that prompts have the meta data that graders read.

    Raises:
        InputError: with the first prompt that lacks some, and with the grader that needs it.
    """
    needs = [(grader, needed) for grader in graders if (needed := needs_meta(grader.kind, grader.part))]
    if not needs:
        return
    for prompt in prompts:
        for grader, needed in needs:
            if missing := missing_keys(needed, prompt.meta):
                raise InputError(
                    f"{grader} needs meta data {', '.join(missing)}, and task={task_name} "
                    f"gives: {shown_keys(prompt.meta)} (prompt {prompt.id}). Choose another for this task"
                )


def check_context(room: int | None, limit: PromptLimit) -> None:
    """Check that an environment can say something; what it says beyond the room is cut.

    Args:
        room: tokens of the model's window that are left beside a response; None: no limit.

    Raises:
        InputError: fewer than `LEAST_CONTEXT` tokens are left.
    """
    least = min(most for most in (room, limit.max_tokens, LEAST_CONTEXT) if most is not None)
    if least < LEAST_CONTEXT:
        raise InputError(
            f"rollout.max_tokens and rollout.max_prompt_tokens leave {least} tokens for what the world "
            f"says; expected {LEAST_CONTEXT} or more: lower the former, or raise the latter"
        )


def num_cut(
    prompts: Sequence[Prompt],
    num_asked: int,
    limit: PromptLimit,
    room: int | None,
    count: CountsTokens,
    chat: Chat | None = None,
) -> int:
    """Return how many of the first `num_asked` prompts are cut.

    Args:
        room: tokens of the model's window that are left beside a response; None: no limit.
        chat: the renderer of conversations; None: prompts are plain texts.

    Raises:
        InputError: a prompt is longer than the room, even when it is cut; or a chat template refuses it, or
            leaves no room for it.
    """
    found = 0
    for number, length in enumerate(lengths_of(prompts, count, chat)):
        found += number < num_asked and limit.cuts(length)
        if chat is not None and limit.cuts(length):
            fitted(chat, prompts[number], limit)
        if room is not None and min(length, limit.max_tokens or length) > room:
            raise InputError(
                f"prompt {prompts[number].id} has {length} tokens, and the model's window leaves room for "
                f"{room} beside the response. rollout.max_prompt_tokens={room} keeps the {limit.kept} {room} "
                f"of each (task.truncation_side={limit.side}); or lower rollout.max_tokens"
            )
    return found
