"""Environments that misbehave as their prompts say."""

import os
import signal
import time

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings


class Moody(EnvironmentSettings):
    """Two turns; `meta["mood"]` says what happens at the second, until the file `meta["once"]` is there.

    Example: `Prompt("p/0", "", meta={"mood": "dies", "once": "/…/it_happened"})` dies, and behaves when
    played again.
    """

    sleep_s: float = 0.0  # a step
    dies_once: str | None = None  # a file: until it is there, a process that starts is killed
    closed: str | None = None  # a folder: each that is closed leaves a file

    def make(self) -> Environment:
        if self.dies_once is not None and not os.path.exists(self.dies_once):
            open(self.dies_once, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return _Mood(self)


class _Mood:
    def __init__(self, settings: Moody) -> None:
        self._settings, self._mood, self._turn = settings, "", 0

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        once = prompt.meta.get("once")
        happens = once is None or not os.path.exists(once)
        self._mood, self._turn, self._once = (prompt.meta.get("mood", "") if happens else ""), 0, once
        if self._mood == "wrong input":
            raise InputError(f"prompt {prompt.id}: no such game")
        return Observation("one")

    def step(self, text: str) -> Step:
        time.sleep(self._settings.sleep_s)
        self._turn += 1
        if self._turn == 2:
            self._act_up()
        return Step(
            Observation("two"), reward=0.5, terminated=self._turn == 2, info={"pid": float(os.getpid())}
        )

    def close(self) -> None:
        if self._settings.closed is not None:
            open(os.path.join(self._settings.closed, str(os.getpid())), "w").close()

    def _act_up(self) -> None:
        if self._mood and self._once:
            open(self._once, "w").close()
        if self._mood == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._mood == "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._mood == "raises":
            raise RuntimeError("the dice rolled off the table")
