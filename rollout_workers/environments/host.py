"""Host of an environment in its process; it makes the environment at the first use."""

import math
import os

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.secrets.output import redacted_errors
from contracts.signatures import check_methods
from rollout_workers.environments.base import EnvironmentSettings


class EnvironmentHost:
    """Host that answers its worker, one call after another."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self._environment: Environment | None = None

    def process(self) -> int:
        return os.getpid()

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        with redacted_errors():
            if self._environment is None:
                self._environment = self._made()
            observation = self._environment.reset(prompt, seed)
        _check_observation(observation, "reset")
        return observation

    def _made(self) -> Environment:
        """
        Raises:
            InputError: `make` returned something else, or its object's methods do not fit an environment's.
        """
        made, kind = self._settings.make(), type(self._settings).__name__
        if isinstance(made, type):
            raise InputError(
                f"environment: {kind}.make() returned the class {made.__name__}; expected {made.__name__}(…)"
            )
        check_methods(f"environment: {kind}.make()", "environment", made, Environment)
        return made

    def step(self, text: str) -> Step:
        assert self._environment is not None, "an episode begins with a reset"
        with redacted_errors():
            step = self._environment.step(text)
        if not isinstance(step, Step):
            raise TypeError(f"step() returned {step!r}; expected whetstone.Step")
        _check_observation(step.observation, "step")
        numbers = {"reward": step.reward, **step.info}
        for name, value in numbers.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise TypeError(f"step() gave {name}={value!r}; expected a finite number")
        return step

    def overhear(self, text: str) -> bool:
        """Pass on the words of the model's copy; return whether they end the dialogue."""
        listen = getattr(self._environment, "overhear", None)
        with redacted_errors():
            return bool(listen(text)) if listen else False

    def leave(self) -> None:
        """Let the environment free an episode's resources, because it may not know that the episode ended."""
        if self._environment is not None and self._settings.can_leave:
            leave = getattr(self._environment, "leave")  # noqa: B009  (not in the protocol)
            leave()

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def _check_observation(observation: object, method: str) -> None:
    if not isinstance(observation, Observation) or not isinstance(observation.text, str):
        raise TypeError(f"{method}() gave {observation!r:.200}; expected whetstone.Observation with a text")
