"""What the model sees at each of its turns, in tokens, within its window.

    growing (memory=None)  one sequence: begin │ obs₁ answer₁ │ obs₂ answer₂ │ obs₃ …   prefixes are reused
    memory=n               a fresh sequence a turn: begin │ the last n turns, without hints │ obs + hint

A growing sequence that would outgrow the window begins afresh, with as many recent turns as fill half of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.environments import Observation
from rollout_workers.turn_texts import TurnTexts

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn's observation in tokens: all of the context where it is `fresh`, else what is new to it."""

    tokens: Tokens
    fresh: bool
    cut: bool = False  # the observation was longer than the window, and lost its beginning


class Contexts:
    """One episode's. `observe`, then `answered`, in turns; `said` puts in what others say meanwhile.

    Args:
        room: tokens that a context may have, so that an answer fits behind it.
        memory: turns that are remembered; None: a growing sequence.
    """

    def __init__(self, texts: TurnTexts, room: int, memory: int | None, header: str) -> None:
        self._texts, self._room, self._memory = texts, room, memory
        self._begin = texts.beginning(header)
        self._past: list[Tokens] = []  # whole turns: observation without hint, answer, what closes it
        self._closing: Tokens = ()  # what the growing sequence still lacks of the last answer
        self._world: Tokens = ()  # what the world has said since the model's last answer
        self._now: Tokens = ()  # the context at hand

    @property
    def tokens(self) -> Tokens:
        """The context at hand, whole."""
        return self._now

    def observe(self, observation: Observation) -> Seen:
        """Take in what the world says; returns what the turn has of it."""
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
        """The model's own tokens, as it drew them."""
        answer = tuple(tokens)
        self._closing = self._texts.closing(answer)
        self._past.append(self._world + answer + self._closing)
        self._now += answer
        self._world = ()

    def said(self, tokens: Sequence[int]) -> Seen:
        """Tokens of another speaker, written in the context at hand: the world's."""
        added = (*tokens, *self._texts.closing(tokens))
        self._now += added
        self._world += added
        return Seen(added, fresh=False)

    def _afresh(self, heard: Tokens) -> Seen:
        """Begin a context: `heard` at its end, and before it what is remembered, as far as it fits."""
        ending = self._texts.ending
        room = self._room - len(ending)
        begin = self._begin[: self.begin_limit]
        kept, cut = heard, len(begin) + len(heard) > room
        if cut:  # an observation's end, with the question, matters most
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
        """The most tokens at a fresh context's start that may come from the header."""
        return (self._room - len(self._texts.ending)) // 2

    @property
    def begin_length(self) -> int:
        """Those that do."""
        return len(self._begin[: self.begin_limit])
