"""Check of a chat template that ends prompts in the mark of a thought, in which every text then begins."""

from collections.abc import Sequence

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.thoughts import opening_mark
from reward_servers.settings import Part


def thought_warnings(chat: Chat | None, rewards: Sequence[Part]) -> list[str]:
    """Warn of texts that begin inside of a thought, where rewards judge them; name the prompt's end."""
    if chat is None or not rewards:
        return []
    mark = opening_mark(chat.text([ASKED]))
    if mark is None:
        return []
    told = (
        f"the chat template ends every prompt in {mark!r}, so texts begin inside of the thought. Rewards "
        "read the answer behind the mark that closes it. A text that is cut off before has none and scores 0: "
        "leave room in rollout.max_tokens"
    )
    if any(part.name == "format" and {"tags", "pattern"} & set(part.options) for part in rewards):
        told += f". format judges texts with {mark!r} in front: they need not write it"
    return [told]
