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
from services.data.tokens.cut_conversations import fitted
from services.data.tokens.cut_prompts import lengths_of
from services.data.tokens.prompt_limit import PromptLimit
from services.models.token_counter import CountsTokens

LEAST_CONTEXT = 4  # tokens; an observation could hardly be shorter


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
    """Return all rewards and metrics of a run."""
    graders = [Grader("reward", "reward", part) for part in rewards]
    return graders + [Grader("metrics", "metric", part) for part in metrics]


def check_references(
    prompts: Sequence[Prompt],
    evaluation: EvaluationSettings,
    graders: Sequence[Grader],
    imitated_by: str | None,
) -> None:
    """Check that prompts have references if something reads them.

    Args:
        imitated_by: name of the algorithm that learns to write references; None: it learns differently.

    Raises:
        InputError: a prompt has no reference; the message names the prompt, and what needs the reference.
    """
    lacking = next((prompt for prompt in prompts if not has_reference(prompt.references)), None)
    if lacking is None:
        return
    what = "only empty references" if lacking.references else "no reference"
    remedy = (
        "Leave this prompt out of the data"
        if lacking.references or any(has_reference(prompt.references) for prompt in prompts)
        else "With task=prompts, name the column of references: task.references_column=NAME"
    )
    if evaluation.perplexity_stride is not None and evaluation.perplexity_meta is None:
        raise InputError(
            f"evaluation.perplexity_stride needs a reference for every prompt, but prompt {lacking.id} has "
            f"{what}. {remedy}"
        )
    if imitated_by is not None:
        raise InputError(
            f"algorithm={imitated_by} learns to write references, but prompt {lacking.id} has "
            f"{what}. {remedy}"
        )
    for grader in graders:
        if needs_references(grader.kind, grader.part):
            raise InputError(
                f"{grader} compares with references, but prompt {lacking.id} has {what}. {remedy}"
            )


def check_meta(prompts: Sequence[Prompt], graders: Sequence[Grader], task_name: str) -> None:
    """Check that prompts have the meta data that graders read.

    Raises:
        InputError: a prompt lacks some; the message names the prompt and the grader.
    """
    needs = [(grader, needed) for grader in graders if (needed := needs_meta(grader.kind, grader.part))]
    if not needs:
        return
    for prompt in prompts:
        for grader, needed in needs:
            if missing := missing_keys(needed, prompt.meta):
                remedy = "Choose another for this task"
                if missing[0] in prompt.meta:
                    remedy = "Leave this prompt out of the data"
                elif task_name == "prompts":
                    remedy = f"Name the columns of the data: task.meta_columns=[{', '.join(missing)}]"
                raise InputError(
                    f"{grader} needs meta data {', '.join(missing)}, but task={task_name} "
                    f"gives: {shown_keys(prompt.meta)} (prompt {prompt.id}). {remedy}"
                )


def check_context(room: int | None, limit: PromptLimit) -> None:
    """Check that an environment can say something. Its longer texts are cut.

    Args:
        room: tokens of the model's window that a response leaves; None: no limit.

    Raises:
        InputError: fewer than `LEAST_CONTEXT` tokens are left.
    """
    least = min(most for most in (room, limit.max_tokens, LEAST_CONTEXT) if most is not None)
    if least < LEAST_CONTEXT:
        raise InputError(
            f"rollout.max_tokens and rollout.max_prompt_tokens leave {least} tokens for the environment's "
            f"texts; expected {LEAST_CONTEXT} or more: lower the former, or raise the latter"
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
        room: tokens of the model's window that a response leaves; None: no limit.
        chat: renderer of conversations; None: prompts are plain texts.

        Raises:
        InputError: even a cut prompt is longer than the room, or a chat template rejects it or leaves no
            room for it.
    """
    cut = 0
    for number, length in enumerate(lengths_of(prompts, count, chat)):
        cut += number < num_asked and limit.cuts(length)
        if chat is not None and limit.cuts(length):
            fitted(chat, prompts[number], limit)
        if room is not None and min(length, limit.max_tokens or length) > room:
            raise InputError(
                f"prompt {prompts[number].id} has {length} tokens, but the model's window leaves room for "
                f"{room} beside the response. rollout.max_prompt_tokens={room} keeps the {limit.kept} {room} "
                f"tokens of each (task.truncation_side={limit.side}); or lower rollout.max_tokens"
            )
    return cut
