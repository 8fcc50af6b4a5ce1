"""TextArena's games for one player: puzzles, guessing games and card games that speak in texts.

TextArena differs from other libraries: a reset returns nothing, closing a game tells the reward, and all
games share Python's one random generator.
"""

import contextlib
import difflib
import io
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings, seed_of

PLAYER = 0  # the only player


class TextArena(EnvironmentSettings):
    """Settings of TextArena's games. The rules are the header; each message of the game comes once.

    Example: `task=episodes environment=textarena environment.id=GuessTheNumber-v0-train`. Ids that end in
    -train put an answer without brackets into the brackets that games expect.
    """

    rewards_itself: ClassVar[bool] = True

    reply_end: str = "\n"
    id: str = Field(min_length=1)  # name that TextArena registers
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of the game's constructor

    def check(self) -> None:
        """Make a game and begin it for one player, because only then it asks for more players or a word list.

        Raises:
            InputError: the game can't begin.
        """
        try:
            self._play().reset(Prompt("check", ""), 0)
        except InputError:
            raise
        except Exception as error:  # a game may raise anything
            raise InputError(
                f"{self.where}: beginning it for one player raised {type(error).__name__}: {error}"
            ) from error

    def make(self) -> Environment:
        return self._play()

    @property
    def where(self) -> str:
        return f"environment.id={self.id}"

    def _play(self) -> "_Play":
        textarena = _library()
        known = textarena.envs.registration.ENV_REGISTRY
        if self.id not in known:
            near = difflib.get_close_matches(self.id, known, n=1)
            meant = f"; did you mean '{near[0]}'?" if near else ""
            raise InputError(f"{self.where}: TextArena has no game of this name{meant}")
        try:
            # Some games fetch a word list at their import, and complain without a network.
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                game = textarena.make(self.id, **self.options)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"{self.where}: making it with {self.options} raised {type(error).__name__}: {reason}"
            ) from error
        return _Play(game, textarena)


class _Play:
    """Successive games. Answers go through a game's wrappers; its messages come from inside them."""

    def __init__(self, game: Any, textarena: Any) -> None:
        self._game, self._kinds = game, textarena.ObservationType
        self._inner = game
        while isinstance(self._inner, textarena.Wrapper):
            self._inner = self._inner.env
        self._chance = random.getstate()

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._num_steps = self._num_invalid = 0
        with self._own_chance():
            self._game.reset(num_players=1, seed=seed_of(prompt))
        rules, texts = self._messages()
        header = "".join(f"{text}\n" for text in (prompt.text, *rules) if text)
        return Observation("".join(texts), header)

    def step(self, text: str) -> Step:
        with self._own_chance():
            done, _ = self._game.step(action=text.strip())
        _, texts = self._messages()
        self._num_steps += 1
        outcome: dict[str, Any] = {}
        reward = 0.0
        if done:
            rewards, players = self._game.close()
            outcome, reward = players[PLAYER], float((rewards or {}).get(PLAYER, 0.0))
            texts.append(f"{outcome.get('reason') or ''}\n")
        state = self._inner.state
        self._num_invalid += bool(outcome.get("invalid_move") or getattr(state, "error_count", 0))
        info = {"steps": float(self._num_steps), "invalid": self._num_invalid / self._num_steps}
        return Step(Observation("".join(texts)), reward, terminated=bool(done), info=info)

    def close(self) -> None:
        """Do nothing, because nothing is open, and TextArena's `close` tells the rewards."""

    def _messages(self) -> tuple[list[str], list[str]]:
        """Return (the rules, other messages) since the last call, without the player's words."""
        player, messages = self._inner.get_observation()
        if player != PLAYER and not self._inner.state.done:
            raise InputError(f"environment=textarena: player {player} is to move; expected a game for one")
        rules = [text.strip() for _, text, kind in messages if kind is self._kinds.PROMPT]
        left_out = (self._kinds.PROMPT, self._kinds.PLAYER_ACTION)
        return rules, [f"{text.strip()}\n" for _, text, kind in messages if kind not in left_out]

    @contextlib.contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Give a game a separate state of `random`, because it reseeds the shared one."""
        outside = random.getstate()
        random.setstate(self._chance)
        try:
            yield
        finally:
            self._chance = random.getstate()
            random.setstate(outside)


def _library() -> Any:
    try:
        import textarena
    except ImportError as error:
        raise InputError(
            f"environment=textarena needs TextArena ({error}); install it with pip install whetstone[arena]"
        ) from None
    return textarena
