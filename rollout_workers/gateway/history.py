"""The calls of one episode as a tree, and the token sequences in it.

    call 1 ── call 2 ── call 4         two calls go on after call 2: the first continues its sequence,
                  └──── call 3         the other one begins a sequence that reads what came before

Each answer stands in one sequence as the model's own, so it is trained on once. In a sequence that a fork
began, earlier answers are read only. Known answers keep the tokens that were drawn; a text that the program
wrote itself, or changed, is laid out anew.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.conversations.called_tools import arguments_of
from contracts.conversations.messages import Message
from contracts.rollout import Turn
from rollout_workers.engines.base import Generation

Tokens = tuple[int, ...]
PLAIN = {"role", "content"}
OWN_TO_A_CLIENT = ("id", "index", "refusal", "annotations", "audio", "function_call")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One answer of the model, and the text that it read before.

    Example: the second call of a conversation read three more tokens: `Call(parent=first, observed=(9, 4, 7),
    heard="And then?", generation=Generation(…))`
    """

    parent: "Call | None"  # the call whose answer is the last known one; None: all is new
    observed: Tokens  # tokens after the parent's answer; without a parent, the whole context
    heard: str  # `observed` as text
    generation: Generation
    role: str = ""  # the policy's role, if it has several

    @property
    def context(self) -> Tokens:
        """Return all tokens that the model read."""
        return continued(self.parent) + self.observed

    @property
    def talk(self) -> str:
        """Return `context` as text, with a line for each answer and each observation."""
        before, texts = self.parent, [self.heard]
        while before is not None:
            texts += before.generation.text, before.heard
            before = before.parent
        return "\n".join(filter(None, reversed(texts)))


def continued(call: Call | None) -> Tokens:
    """Return a call's context and its answer, which later calls continue; () for None."""
    pieces: list[Tokens] = []
    while call is not None:
        pieces += call.generation.tokens, call.observed
        call = call.parent
    return tuple(token for piece in reversed(pieces) for token in piece)


@dataclass(slots=True)
class History:
    """The finished calls of an episode, in the order of their ends."""

    calls: list[Call] = field(default_factory=list)
    _by_talk: dict[bytes, Call] = field(default_factory=dict)  # by the conversation's digest, answer included
    # (prompt with its answer, call), for all roles
    _by_text: list[tuple[str, Call]] = field(default_factory=list)

    def add(self, call: Call) -> None:
        self.calls.append(call)

    def know_talk(self, digest: bytes, call: Call) -> None:
        """Find this call when a later call's messages begin with the conversation of this digest."""
        self._by_talk[digest] = call

    def know_text(self, text: str, call: Call) -> None:
        """Find this call when a later call's prompt begins with this text."""
        self._by_text.append((text, call))

    def find_talk(self, digests: Sequence[bytes], messages: Sequence[Message]) -> tuple[Call | None, int]:
        """Return the latest known call that these messages continue, and how many messages it covers.

        Args:
            digests: digests of the messages up to each message, from `talk_digests`.
        """
        for count in range(len(messages) - 1, 0, -1):
            if messages[count]["role"] == "assistant":  # an answer that nobody drew: lay out everything
                return None, 0
            if (call := self._by_talk.get(digests[count - 1])) is not None:
                return call, count
        return None, 0

    def find_text(self, prompt: str, role: str = "") -> tuple[Call | None, str]:
        """Return the role's call with the longest text that begins the prompt, and the rest after it."""
        of_role = [(text, call) for text, call in self._by_text if call.role == role]
        known = [(text, call) for text, call in of_role if prompt.startswith(text)]
        text, call = max(known, key=lambda pair: len(pair[0]), default=("", None))
        return call, prompt[len(text) :]

    def sequences(self) -> list[list[Call]]:
        """Return the calls by token sequence; the sequence with the latest answer comes last."""
        open_at: dict[int, list[Call]] = {}  # by the last call of each sequence
        for call in self.calls:
            sequence = open_at.pop(id(call.parent), [])
            sequence.append(call)
            open_at[id(call)] = sequence
        return list(open_at.values())

    def turns(self) -> tuple[Turn, ...]:
        """Return the calls as turns, sequence after sequence, without rewards."""
        return tuple(
            _turn(call, is_first=not place)
            for sequence in self.sequences()
            for place, call in enumerate(sequence)
        )


def _turn(call: Call, *, is_first: bool) -> Turn:
    drawn = call.generation
    observed = call.context if is_first else call.observed
    return Turn(
        observed,
        drawn.tokens,
        drawn.text,
        drawn.behavior_logprobs,
        drawn.versions,
        fresh=is_first,
        observation_text=call.talk if is_first else call.heard,
        role=call.role,
    )


def talk_digests(messages: Sequence[Message], tools: Sequence[Any] = (), role: str = "") -> list[bytes]:
    """Return a digest of the conversation up to each message, the role and the tools.

    >>> first, second = talk_digests([{"role": "user", "content": "Hi"}, {"role": "user", "content": "Ho"}])
    >>> talk_digests([{"role": "user", "content": " Hi "}]) == [first], first == second
    (True, False)
    """
    digests, last = [], hashlib.blake2b(_canonical([role, *tools]), digest_size=16).digest()
    for message in messages:
        last = extended(last, message)
        digests.append(last)
    return digests


def extended(digest: bytes, message: Message) -> bytes:
    """Return the digest of a conversation with one more message.

    Blanks around a text do not count, nor do a client's additions to an answer: ids and empty fields.
    """
    content = message.get("content") or ""
    if message.keys() == PLAIN and isinstance(content, str):  # nearly all messages; JSON takes longer
        plain = f"{message['role']}\n{content.strip()}"
        return hashlib.blake2b(digest + plain.encode(), digest_size=16).digest()
    fields = {key: value for key, value in message.items() if value and key not in OWN_TO_A_CLIENT}
    fields["content"] = content.strip() if isinstance(content, str) else content
    if fields.keys() == PLAIN and isinstance(content, str):
        return extended(digest, fields)
    if "tool_calls" in fields:
        functions = [call.get("function", call) for call in fields["tool_calls"]]
        # A client may rewrite arguments; the same value is the same call.
        fields["tool_calls"] = [
            {**function, "arguments": arguments_of(function.get("arguments"))} for function in functions
        ]
    return hashlib.blake2b(digest + _canonical(fields), digest_size=16).digest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
