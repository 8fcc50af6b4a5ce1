"""Cutting of conversations that exceed the limit of a prompt. Messages lose text, and marks stay whole."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from contracts.conversations.chat import SYSTEM_ROLES, Chat, messages_of
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tokens.prompt_limit import PromptLimit

Messages = list[Mapping[str, Any]]


def fitted(chat: Chat, prompt: Prompt, limit: PromptLimit) -> tuple[int, ...]:
    """Return a prompt's tokens by its chat template, within the limit.

    If the limit cuts the beginning, remove the oldest messages, except the system's, so that the rest begins
    with a user's message. Then cut the last message on the limit's side.

    Raises:
        InputError: the template rejects the prompt, or its marks alone exceed the limit.
    """
    whole = chat.of_prompt(prompt)
    if not limit.cuts(len(whole)):
        return whole
    messages = messages_of(prompt)
    for shorter in _without_the_oldest(messages) if limit.side == "left" else ():
        messages = shorter
        tokens = chat.tokens(messages, prompt.tools)
        if not limit.cuts(len(tokens)):
            return tokens
    return _with_less_text(chat, messages, prompt, limit)


def _without_the_oldest(messages: Messages) -> list[Messages]:
    """Return shorter and shorter conversations.

    >>> talk = [{"role": role} for role in ("system", "user", "assistant", "user")]
    >>> [[message["role"] for message in shorter] for shorter in _without_the_oldest(talk)]
    [['system', 'user']]
    """
    opening = messages[:1] if messages[0].get("role") in SYSTEM_ROLES else []
    starts = [i for i, message in enumerate(messages) if i > len(opening) and message.get("role") == "user"]
    return [[*opening, *messages[start:]] for start in starts]


def _with_less_text(chat: Chat, messages: Messages, prompt: Prompt, limit: PromptLimit) -> tuple[int, ...]:
    """Return the tokens with as much of the last message as fits."""
    last = str(messages[-1].get("content") or "")
    pieces = chat.pieces(last)

    def rendered(count: int) -> tuple[int, ...]:
        kept = pieces[:count] if limit.side == "right" else pieces[len(pieces) - count :]
        return chat.tokens([*messages[:-1], {**messages[-1], "content": "".join(kept)}], prompt.tools)

    most = bisect_right(range(len(pieces) + 1), False, key=lambda count: limit.cuts(len(rendered(count)))) - 1
    if most < 1:
        raise InputError(
            f"prompt {prompt.id}: the chat template and all but the last message take {len(rendered(0))} "
            f"tokens, which leaves no room for a text within {limit.option}={limit.max_tokens}; expected more"
        )
    return rendered(most)
