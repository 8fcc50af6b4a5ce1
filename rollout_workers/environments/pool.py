"""Environments of one worker as seats: take one, ask it, receive answers as they come."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from contracts.environments import Observation, Step
from contracts.errors import EpisodeError, InputError, WhetstoneError
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.host import EnvironmentHost


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of an environment that died, hung or raised; its seat already has a new environment.

    Example: `Failure(EpisodeError("step() did not answer for 30 s"))`, which is tried again.
    """

    error: WhetstoneError

    @property
    def worth_another_try(self) -> bool:
        """Return whether a new attempt may succeed: wrong input stays wrong, other errors may pass."""
        return not isinstance(self.error, InputError)


Reply = Observation | Step | bool | Failure


class Environments(Protocol):
    """Pool of environments; `receive` answers every call exactly once, if necessary by a `Failure`."""

    num_restarts: int

    def take(self) -> int | None:
        """Take a free seat and return its number; None: none is free."""
        ...

    def reset(self, seat: int, prompt: Prompt, seed: int) -> None: ...

    def step(self, seat: int, text: str) -> None: ...

    def overhear(self, seat: int, text: str) -> None: ...

    def receive(self, wait_s: float) -> list[tuple[int, Reply]]:
        """Return the replies that have come, by seat, after at most `wait_s` for the first."""
        ...

    @property
    def num_asked(self) -> int:
        """Return the number of seats that owe an answer."""
        ...

    def give_back(self, seat: int) -> None:
        """Free a seat whose episode is over or given up."""
        ...

    def close(self) -> None: ...


MakeEnvironments = Callable[[EnvironmentSettings], Environments]


class LocalEnvironments:
    """Environments in this process, for debugging: if one hangs or dies, so does the worker."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self._hosts: dict[int, EnvironmentHost] = {}
        self._free = list(range(settings.num_parallel))
        self._answers: list[tuple[int, Reply]] = []
        self.num_restarts = 0

    def take(self) -> int | None:
        if not self._free:
            return None
        seat = self._free.pop(0)
        self._hosts.setdefault(seat, EnvironmentHost(self._settings))
        return seat

    def reset(self, seat: int, prompt: Prompt, seed: int) -> None:
        self._ask(seat, lambda host: host.reset(prompt, seed))

    def step(self, seat: int, text: str) -> None:
        self._ask(seat, lambda host: host.step(text))

    def overhear(self, seat: int, text: str) -> None:
        self._ask(seat, lambda host: host.overhear(text))

    def _ask(self, seat: int, call: Callable[[EnvironmentHost], Reply]) -> None:
        try:
            reply = call(self._hosts[seat])
        except Exception as error:  # an environment may raise anything
            self.num_restarts += 1
            with contextlib.suppress(Exception):
                self._hosts[seat].close()
            self._hosts[seat] = EnvironmentHost(self._settings)
            reply = Failure(episode_error(error))
        self._answers.append((seat, reply))

    def receive(self, wait_s: float) -> list[tuple[int, Reply]]:
        answers, self._answers = self._answers, []
        return answers

    @property
    def num_asked(self) -> int:
        return len(self._answers)

    def give_back(self, seat: int) -> None:
        self._hosts[seat].leave()
        self._free.append(seat)

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()


def episode_error(error: Exception) -> WhetstoneError:
    """Turn an environment's error into one of the two errors that a rollout carries."""
    if isinstance(error, InputError):
        return InputError(str(error))  # a user's subclass might not cross to another process
    return EpisodeError(f"{type(error).__name__}: {error}")
