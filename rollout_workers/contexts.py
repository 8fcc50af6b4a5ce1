"""Build the model's context of each turn, in tokens, within its window.

    growing (memory=None)  one sequence: begin │ obs₁ answer₁ │ obs₂ answer₂ │ obs₃ …   prefixes are reused
    memory=n               a fresh sequence a turn: begin │ the last n turns, without hints │ obs + hint

A growing sequence that would exceed the window begins afresh, with as many recent turns as fill half of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.environments import Observation
from rollout_workers.turn_texts import TurnTexts

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn's observation in tokens: the whole context if `fresh`, otherwise the new part."""

    tokens: Tokens
    fresh: bool
    cut: bool = False  # the observation exceeded the window and lost its beginning


class Contexts:
    """Contexts of one episode: call `observe` and `answered` in turn, and `said` for other speakers between.

    Args:
        room: the most tokens of a context that leave room for an answer.
        memory: number of remembered turns; None: a growing sequence.
    """

    def __init__(self, texts: TurnTexts, room: int, memory: int | None, header: str) -> None:
        self._texts, self._room, self._memory = texts, room, memory
        self._begin = texts.beginning(header)
        self._past: list[Tokens] = []  # whole turns: observation without hint, answer, closing tokens
        self._closing: Tokens = ()  # closing tokens of the last answer that the growing sequence still lacks
        self._world: Tokens = ()  # observations since the model's last answer
        self._now: Tokens = ()  # the current context

    @property
    def tokens(self) -> Tokens:
        """Return the whole current context."""
        return self._now

    def observe(self, observation: Observation) -> Seen:
        """Add an observation; return what the turn sees of it."""
        text = self._texts.observation(observation.text) if observation.text else ()
        hinted = self._texts.observation(observation.text + observation.hint) if observation.hint else text
        grown = self._closing + hinted
        if self._now and self._memory is None and len(self._now) + len(grown) <= self._room:
            self._now += grown
            seen = Seen(grown, fresh=False)
        else:
            seen = self._afresh(self._world + hinted)
        self._closing = ()
        self._world += text
        return seen

    def answered(self, tokens: Sequence[int]) -> None:
        """Add the model's own tokens, as it drew them."""
        answer = tuple(tokens)
        self._closing = self._texts.closing(answer)
        self._past.append(self._world + answer + self._closing)
        self._now += answer
        self._world = ()

    def said(self, tokens: Sequence[int]) -> Seen:
        """Add another speaker's tokens to the current context, as a part of the observation."""
        added = (*tokens, *self._texts.closing(tokens))
        self._now += added
        self._world += added
        return Seen(added, fresh=False)

    def _afresh(self, heard: Tokens) -> Seen:
        """Begin a context that ends in `heard`, with as much memory before it as fits."""
        ending = self._texts.ending
        room = self._room - len(ending)
        begin = self._begin[: self.begin_limit]
        kept, cut = heard, len(begin) + len(heard) > room
        if cut:  # keep the observation's end, which holds the question
            kept = heard[len(begin) + len(heard) - room :]
        limit = room if self._memory is not None else max(room // 2, len(begin) + len(kept))
        recent: list[Tokens] = []
        for turn in reversed(self._past[-self._memory :] if self._memory else self._past):
            if self._memory == 0 or len(begin) + sum(map(len, recent)) + len(turn) + len(kept) > limit:
                break
            recent.append(turn)
        self._now = begin + tuple(token for turn in reversed(recent) for token in turn) + kept + ending
        return Seen(self._now, fresh=True, cut=cut)

    @property
    def begin_limit(self) -> int:
        """Return the most header tokens at the start of a fresh context."""
        return (self._room - len(self._texts.ending)) // 2

    @property
    def begin_length(self) -> int:
        """Return the number of header tokens at the start of a fresh context."""
        return len(self._begin[: self.begin_limit])
