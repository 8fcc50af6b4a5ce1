"""Build the model's context of each turn, in tokens, within its window.

    growing (memory=None)  one sequence: begin │ obs₁ answer₁ │ obs₂ answer₂ │ obs₃ …   prefixes are reused
    memory=n               a fresh sequence a turn: begin │ the last n turns, without hints │ obs + hint

A growing sequence that would exceed the window begins afresh, with as many recent turns as fill half of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.conversations.messages import Message
from contracts.environments import Observation
from contracts.errors import InputError
from rollout_workers.tools.tool_calls import Schemas
from rollout_workers.turn_texts import ChatTexts, TurnTexts

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn's observation in tokens: the whole context if `fresh`, otherwise the new part.

    `forgot`: some turns that the model should remember no longer fit.
    """

    tokens: Tokens
    fresh: bool
    cut: bool = False  # the observation exceeded the window and lost its beginning
    forgot: bool = False


class Contexts:
    """Contexts of one episode: call `observe` and `answered` in turn; `said` adds other speakers.

    Args:
        room: limit of a context's tokens that leaves room for an answer.
        memory: number of remembered turns; None: a growing sequence.
    """

    def __init__(self, texts: TurnTexts, room: int, memory: int | None, header: str) -> None:
        self._texts, self._room, self._memory, self._header = texts, room, memory, header
        self._begin, self._overlap = texts.beginning(header), texts.overlap(header)
        self._past: list[tuple[Tokens, Tokens]] = []  # whole turns: observation without hint, answer
        self._answer: Tokens | None = None  # the last answer, until an observation follows
        self._world: Tokens = ()  # observations since the model's last answer
        self._now: Tokens = ()  # the current context

    @property
    def tokens(self) -> Tokens:
        """Return the whole current context."""
        return self._now

    def observe(self, observation: Observation) -> Seen:
        """Add an observation; return the part that the turn sees."""
        shown, messages = observation.text, observation.messages
        is_first = not (self._now or self._past) and (shown or messages)
        if (
            is_first
            and (whole := self._texts.start(self._header, shown, messages, observation.tools)) is not None
        ):
            return self._start(whole, observation)
        text = self._texts.observation(shown, messages) if shown or messages else ()
        hinted = (
            self._texts.observation(shown + observation.hint) if observation.hint and not messages else text
        )
        grown = hinted if self._answer is None else self._texts.following(self._answer, hinted)
        if self._now and self._memory is None and len(self._now) + len(grown) <= self._room:
            self._now += grown
            seen = Seen(grown, fresh=False)
        else:
            has_grown = bool(self._now) and self._memory is None
            seen = replace(self._afresh(self._world + hinted), forgot=has_grown)
        self._answer = None
        self._world += text
        return seen

    def answered(self, tokens: Sequence[int]) -> None:
        """Add the model's tokens, exactly as drawn."""
        self._answer = tuple(tokens)
        self._past.append((self._world, self._answer))
        self._now += self._answer
        self._world = ()

    def said(self, tokens: Sequence[int]) -> Seen:
        """Add another speaker's tokens to the current context, as a part of the observation."""
        added = (*tokens, *self._texts.closing(tokens))
        self._now += added
        self._world += added
        return Seen(added, fresh=False)

    def _start(self, whole: Tokens, observation: Observation) -> Seen:
        """Begin the episode with `whole`, its first context without a hint, in a template's layout."""
        hinted = whole
        if observation.hint and not observation.messages:
            text = observation.text + observation.hint
            hinted = self._texts.start(self._header, text) or whole
        begin = len(self._begin) if whole[: len(self._begin)] == self._begin else 0
        self._world = whole[begin:]
        if len(hinted) > self._room:
            return self._afresh(hinted[begin:])
        self._now = hinted
        return Seen(hinted, fresh=True)

    def _afresh(self, heard: Tokens) -> Seen:
        """Begin a context that ends in `heard`, preceded by as much memory as fits."""
        ending = self._texts.ending
        room = self._room - len(ending)
        begin = self._begin[: self.begin_limit]
        kept, cut = heard, len(begin) + len(heard) > room
        if cut:  # keep the end of the observation, which has the question
            kept = heard[len(begin) + len(heard) - room :]
        limit = room if self._memory is not None else max(room // 2, len(begin) + len(kept))
        behind = kept
        for world, answer in reversed(self._past[-self._memory :] if self._memory else self._past):
            longer = world + answer + self._texts.following(answer, behind)
            if self._memory == 0 or len(begin) + len(longer) > limit:
                break
            behind = longer
        if begin and behind[: len(self._overlap)] == self._overlap:
            behind = behind[len(self._overlap) :]
        self._now = begin + behind + ending
        return Seen(self._now, fresh=True, cut=cut)

    @property
    def begin_limit(self) -> int:
        """Return the limit of header tokens at the start of a fresh context."""
        return (self._room - len(self._texts.ending)) // 2

    @property
    def begin_length(self) -> int:
        """Return the number of header tokens at the start of a fresh context."""
        return len(self._begin[: self.begin_limit])


class RenderedContexts:
    """Contexts of a chat template that lays out the conversation at each turn and may drop earlier text.

    If the template only appends, the sequence grows and its tokens stay. Otherwise a fresh sequence begins;
    the model reads earlier answers there, but does not train on them. Arguments as in `Contexts`.
    """

    def __init__(self, texts: ChatTexts, room: int, memory: int | None, header: str) -> None:
        self._texts, self._room, self._memory, self._header = texts, room, memory, header
        self._past: list[list[Message]] = []  # whole turns: the user's messages without hints, the answer
        self._asked: list[Message] = []  # messages since the last answer, without hints
        self._tools: Schemas = ()
        self._now: Tokens = ()

    @property
    def tokens(self) -> Tokens:
        """Return the whole current context."""
        return self._now

    def observe(self, observation: Observation) -> Seen:
        """Add an observation; return the part that the turn sees."""
        self._tools = observation.tools or self._tools
        text, hint = observation.text, observation.hint
        question = list(observation.messages) or [{"role": "user", "content": text + hint}]
        whole, num_forgotten, cut = self._whole([*self._asked, *question])
        self._asked += question if observation.messages or not hint else [{"role": "user", "content": text}]
        before = len(self._now)
        grows = self._memory is None and before and whole[:before] == self._now
        self._now = whole
        if grows:
            return Seen(whole[before:], fresh=False)
        return Seen(whole, fresh=True, cut=cut, forgot=num_forgotten > 0)

    def answered(self, tokens: Sequence[int]) -> None:
        """Add the model's tokens, exactly as drawn."""
        self._past.append([*self._asked, self._texts.chat.message(tokens)])
        self._asked, self._now = [], self._now + tuple(tokens)

    def said(self, tokens: Sequence[int]) -> Seen:
        """Refuse a second assistant, for which no chat template has a place."""
        raise InputError(
            "a chat template has one assistant, but two speak; expected environment.template=plain"
        )

    def _whole(self, question: Sequence[Message]) -> tuple[Tokens, int, bool]:
        """Return the tokens with as many turns as fit, how many don't, and whether no question fits."""
        first = 0 if self._memory is None else max(0, len(self._past) - self._memory)
        for start in range(first, len(self._past) + 1):
            turns = [message for turn in self._past[start:] for message in turn]
            whole = self._texts.start(self._header, "", [*turns, *question], self._tools)
            if len(whole) <= self._room:
                return whole, start - first, False
        return whole[-self._room :], len(self._past) - first, True

    @property
    def begin_limit(self) -> int:
        """Return the limit of header tokens at the start of a fresh context."""
        return self._room // 2

    @property
    def begin_length(self) -> int:
        """Return the number of header tokens at the start of a fresh context."""
        return len(self._texts.beginning(self._header)[: self.begin_limit])


def contexts_of(texts: TurnTexts, room: int, memory: int | None, header: str) -> Contexts | RenderedContexts:
    """Return the contexts of an episode: recorded tokens, or the layout of a chat template."""
    if isinstance(texts, ChatTexts) and texts.chat.follows_template:
        return RenderedContexts(texts, room, memory, header)
    return Contexts(texts, room, memory, header)
