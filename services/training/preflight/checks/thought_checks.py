"""Check a chat template whose prompts end in the opening mark of a thought, or in an empty thought."""

from collections.abc import Sequence

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.thoughts import EMPTY_AT_THE_END, opening_mark
from reward_servers.settings import Part


def thought_warnings(chat: Chat | None, rewards: Sequence[Part]) -> list[str]:
    """Warn of texts that begin inside or after a thought, if rewards grade them."""
    if chat is None or not rewards:
        return []
    prompt = chat.text([ASKED])
    wanted = next((_thought_of(part) for part in rewards if _thought_of(part)), None)
    if (mark := opening_mark(prompt)) is not None:
        warning = (
            f"the chat template ends every prompt in {mark!r}, so texts begin inside the thought. Rewards "
            "read the answer after the closing mark. A text that is cut before the mark has no answer and "
            "scores 0: leave room in rollout.max_tokens"
        )
        return [
            f"{warning}. format grades texts with {mark!r} in front, so texts need not write it"
            if wanted
            else warning
        ]
    if wanted and EMPTY_AT_THE_END.search(prompt):
        return [
            "the chat template ends every prompt in an empty thought, so models write no other thought, and "
            f"format seldom finds {wanted!r}: let the template think, such as "
            "model.chat.options.enable_thinking=true, or leave the tag out"
        ]
    return []


def _thought_of(part: Part) -> str | None:
    """Return a format's first tag or pattern, if it requires a thought."""
    tags = list(part.options.get("tags") or ())
    pattern = f"<{tags[0]}>" if tags else str(part.options.get("pattern") or "")
    return (tags[0] if tags else pattern) if part.name == "format" and _names_thought(pattern) else None


def _names_thought(pattern: str) -> bool:
    return any(opening_mark(piece + ">") is not None for piece in pattern.split(">")[:-1])
