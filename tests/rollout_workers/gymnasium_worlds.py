"""Real Gymnasium environments, small enough to be worked through by hand."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Text

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,'?!"


class Guess(gymnasium.Env[str, str]):
    """A number below `below`, drawn by the seed; "higher" or "lower" until it is found."""

    def __init__(self, below: int = 10) -> None:
        self.observation_space, self.action_space = Text(60, charset=LETTERS), Text(3, charset="0123456789")
        self.below, self.closed = below, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.options, self.seed = options, seed
        self.number = int(self.np_random.integers(self.below))
        self.tries = 0
        return f"guess a number below {self.below}.", {"secret": self.number}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        guess = int(action)
        info = {"tries": np.int64(self.tries), "won": guess == self.number, "who": "me", "odds": np.nan}
        if guess == self.number:
            return "found!", 1.0, True, False, info
        return ("higher" if guess < self.number else "lower"), np.float64(-0.1), False, self.tries >= 3, info

    def close(self) -> None:
        self.closed = True


class Corridor(gymnasium.Env[Any, Any]):
    """Cells 0 to 3, from 0; the last one ends it. Actions are numbers from 5 on, observations a vector."""

    def __init__(self, masked: bool = True) -> None:
        self.observation_space, self.action_space = Box(0, 3, (1,)), Discrete(2, start=5)
        self.masked = masked

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int((options or {}).get("cell", 0))
        return self._seen()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell = max(0, self.cell + (1 if action == 6 else -1))
        observation, info = self._seen()
        return observation, 0.0, self.cell == 3, False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        info = {"action_mask": np.array([self.cell > 0, True])} if self.masked else {}
        return np.array([self.cell], dtype=np.float32), info


def in_words(observation: Any) -> str:
    return f"You are in cell {observation[0]:.0f}."


class Quest(Guess):
    """Tells which commands it admits."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Text(20, charset=LETTERS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return "a hall", {"admissible_commands": ["go east", "look"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"you {action}", 0.0, False, False, {}


class Old(Guess):
    """As Gym was before 0.26: four values."""

    def step(self, action: str) -> Any:
        return "higher", 0.0, False, {}


class Older(Guess):
    def reset(self, **_: Any) -> Any:
        return "guess"


class Numb(Guess):
    def step(self, action: str) -> Any:
        return 3, 0.0, False, False, {}


class Priceless(Guess):
    def step(self, action: str) -> Any:
        return "higher", None, False, False, {}


class Continuous(Guess):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(0, 1, (2,))


class Broken(Guess):
    def __init__(self) -> None:
        raise OSError("no display")


class NoEnvironment:
    pass


gymnasium.register("WhetstoneTestGuess-v0", entry_point=Guess, max_episode_steps=2)
