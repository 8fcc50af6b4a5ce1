"""Check of a chat template whose prompts end in the mark of a thought, or in an empty thought."""

from collections.abc import Sequence

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.thoughts import EMPTY_AT_THE_END, opening_mark
from reward_servers.settings import Part


def thought_warnings(chat: Chat | None, rewards: Sequence[Part]) -> list[str]:
    """Warn of texts that begin inside or behind a thought, where rewards judge them."""
    if chat is None or not rewards:
        return []
    prompt = chat.text([ASKED])
    wanted = next((_thought_of(part) for part in rewards if _thought_of(part)), None)
    if (mark := opening_mark(prompt)) is not None:
        told = (
            f"the chat template ends every prompt in {mark!r}, so texts begin inside of the thought. Rewards "
            "read the answer behind the mark that closes it. A text that is cut off before has none, and "
            "scores 0: leave room in rollout.max_tokens"
        )
        return [
            f"{told}. format judges texts with {mark!r} in front: they need not write it" if wanted else told
        ]
    if wanted and EMPTY_AT_THE_END.search(prompt):
        return [
            "the chat template ends every prompt in an empty thought, so models write no other, and format "
            f"seldom finds {wanted!r}: let the template think, such as "
            "model.chat.options.enable_thinking=true, or leave the tag out"
        ]
    return []


def _thought_of(part: Part) -> str | None:
    """Return the first tag or the pattern of a format, if it wants a thought."""
    tags = list(part.options.get("tags") or ())
    asked = f"<{tags[0]}>" if tags else str(part.options.get("pattern") or "")
    return (tags[0] if tags else asked) if part.name == "format" and _names_thought(asked) else None


def _names_thought(asked: str) -> bool:
    return any(opening_mark(piece + ">") is not None for piece in asked.split(">")[:-1])
