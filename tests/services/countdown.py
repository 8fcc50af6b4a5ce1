"""An environment of a user's own, small enough to work out by hand: say the number that was just heard."""

from typing import ClassVar

from contracts.environments import Observation, Step
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings

COUNTDOWN = f"{__name__}:Countdown"


class Countdown(EnvironmentSettings):
    """From `start` down to 1: each number said after it gives 1, anything else 0; 1 ends it."""

    rewards_itself: ClassVar[bool] = True
    has_baselines: ClassVar[bool] = True

    start: int = 3

    def make(self) -> "Game":
        return Game(self.start)


class Game:
    def __init__(self, start: int) -> None:
        self._start = start

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._number, self._right = self._start, 0
        return self._observation(header="Say the number. ")

    def step(self, text: str) -> Step:
        right = text.strip() == str(self._number)
        self._right += right
        self._number -= 1
        over = self._number == 0
        info = {"won": float(over and self._right == self._start), "steps": float(self._start - self._number)}
        return Step(self._observation(), reward=float(right), terminated=over, info=info)

    def close(self) -> None:
        pass

    def _observation(self, header: str = "") -> Observation:
        number = str(self._number)
        return Observation(f"{number} ?", header, actions=("1", "2", "3"), expert=number)
