"""Any Gymnasium environment that uses texts, or that can be turned into texts."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from contracts.components import find, import_module
from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Strings
from rollout_workers.environments.base import EnvironmentSettings, seed_of
from rollout_workers.environments.gymnasium_actions import Actions, read_actions


class GymnasiumText(EnvironmentSettings):
    """Settings of Gymnasium environments with texts (`gymnasium.spaces.Text`) as observations and actions.

    `actions` names numbered actions, and `observation_text` turns other observations into texts.

    Example: `environment=gymnasium_text environment.id=my_games:Maze-v0`, which imports `my_games` first.
    """

    rewards_itself: ClassVar[bool] = True

    reply_end: str = "\n"
    id: str | None = None  # registered name; in my_games:Maze-v0, the module my_games registers it
    class_path: str | None = None  # package.module:Class of a gymnasium.Env, instead of an id
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of its constructor
    actions: Strings = ()  # names of a Discrete space's actions, in order
    observation_text: str | None = None  # package.module:function, from an observation to its text
    hint: bool = True  # name the possible actions if they are known
    invalid_reward: float = 0.0  # reward of an answer that is no action

    @model_validator(mode="after")
    def _can_be_found(self) -> "GymnasiumText":
        if (self.id is None) == (self.class_path is None):
            raise ValueError(
                f"got id={self.id!r} and class_path={self.class_path!r}; expected one of them: "
                "a registered id, or package.module:Class or FILE.py:Class"
            )
        self._find()
        if self.observation_text is not None:
            _function(self.observation_text)
        return self

    def check(self) -> None:
        """Make an environment and close it, because only then its spaces are known."""
        self.make().close()

    def make(self) -> Environment:
        return self.played(self._open())

    def played(self, world: Any) -> Environment:
        """Return a Gymnasium environment as one of Whetstone's.

        Raises:
            InputError: its observations or actions are no texts, and no setting turns them into texts.
        """
        try:
            _check_observations(world, self)
            return _Played(self, world, read_actions(world.action_space, self.actions))
        except InputError:
            world.close()
            raise

    @property
    def where(self) -> str:
        return f"environment.id={self.id}" if self.id else f"environment.class_path={self.class_path}"

    def _find(self) -> Any:
        """Return the class, or Gymnasium's registration of the id.

        Raises:
            InputError: the class or id does not exist.
        """
        import gymnasium

        if self.class_path is not None:
            if ":" not in self.class_path:
                raise InputError(f"{self.where}: a class is written package.module:Class, or FILE.py:Class")
            kind = find("environment.class_path", self.class_path, {})
            if not issubclass(kind, gymnasium.Env):
                raise InputError(f"{self.where}: {kind.__name__} is not a gymnasium.Env; derive it from that")
            return kind
        module, _, name = str(self.id).rpartition(":")
        if module:
            import_module(module, where=self.where)
        try:
            return gymnasium.spec(name)
        except gymnasium.error.Error as error:
            raise InputError(
                f"{self.where}: {error} Put the module that registers it in front: my_games:Maze-v0"
            ) from None

    def _open(self) -> Any:
        import gymnasium

        kind = self._find()
        try:
            if isinstance(kind, type):
                return kind(**self.options)
            return gymnasium.make(kind, disable_env_checker=True, **self.options)
        except Exception as error:  # a constructor may raise anything
            raise InputError(
                f"{self.where}: making it with {self.options} raised {type(error).__name__}: {error}"
            ) from error


class _Played:
    """Adapter from a Gymnasium environment to ours: texts in, texts out, numbers only in `info`."""

    def __init__(self, settings: GymnasiumText, world: Any, actions: Actions) -> None:
        self._settings, self._world, self._actions = settings, world, actions
        self._tell = _function(settings.observation_text) if settings.observation_text else None

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin the prompt's episode, with the prompt's seed instead of the lease's."""
        self._num_steps = self._num_invalid = 0
        opening = self._world.reset(seed=seed_of(prompt), options=prompt.meta.get("options"))
        if not (isinstance(opening, tuple) and len(opening) == 2 and isinstance(opening[1], Mapping)):
            raise self._wrong("reset()", opening, "(observation, info)")
        self._now = self._said(*opening)
        header = f"{prompt.text}\n" if prompt.text else ""
        return Observation(self._now.text, header, self._now.hint, self._now.actions)

    def step(self, text: str) -> Step:
        self._num_steps += 1
        action = self._actions.read(text)
        if action is None:
            return self._refused(text)
        outcome = self._world.step(action)
        if not (isinstance(outcome, tuple) and len(outcome) == 5 and isinstance(outcome[4], Mapping)):
            raise self._wrong("step()", outcome, "(observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = outcome
        if not _is_number(reward):
            raise self._wrong("step()'s reward", reward, "a finite number")
        self._now = self._said(observation, info)
        numbers = {name: float(value) for name, value in info.items() if _is_number(value)}
        return Step(self._now, float(reward), bool(terminated), bool(truncated), numbers | self._counts())

    def close(self) -> None:
        self._world.close()

    def _said(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        text = self._tell(observation) if self._tell else observation
        if not isinstance(text, str):
            raise self._wrong("an observation", text, "a text")
        possible = self._actions.possible(info)
        hint = f"You can: {', '.join(possible)}.\n" if possible and self._settings.hint else ""
        return Observation(f"{text}\n", hint=hint, actions=possible)

    def _refused(self, text: str) -> Step:
        """Answer an invalid action without a step; a model without memory gets the observation again."""
        self._num_invalid += 1
        refusal = f"'{' '.join(text.split())[:80]}' is no action here.\n{self._now.text}"
        observation = Observation(refusal, hint=self._now.hint, actions=self._now.actions)
        return Step(observation, self._settings.invalid_reward, info=self._counts())

    def _counts(self) -> dict[str, float]:
        return {"steps": self._num_steps, "invalid": self._num_invalid / self._num_steps}

    def _wrong(self, what: str, got: Any, expected: str) -> InputError:
        return InputError(
            f"{self._settings.where}: {what} gave {got!r:.200} ({type(got).__name__}); expected {expected}, "
            "as in Gymnasium since 0.26"
        )


def _check_observations(world: Any, settings: GymnasiumText) -> None:
    from gymnasium.spaces import Text

    if settings.observation_text is None and not isinstance(world.observation_space, Text):
        raise InputError(
            f"{settings.where}: its observations are {world.observation_space}; expected "
            "gymnasium.spaces.Text, or environment.observation_text=package.module:function that tells them"
        )


def _function(address: str) -> Callable[[Any], Any]:
    """Import the user's function."""
    module_name, _, name = address.partition(":")
    where = f"environment.observation_text={address}"
    if not name:
        raise InputError(f"{where}: a function is written package.module:function, or FILE.py:function")
    function: Callable[[Any], Any] | None = getattr(import_module(module_name, where=where), name, None)
    if not callable(function):
        raise InputError(f"{where}: {module_name} has no function {name}")
    return function


def _is_number(value: Any) -> bool:
    """Return whether a value can be logged: a finite number or a boolean, of Python or NumPy."""
    return isinstance(value, Real | np.bool_) and math.isfinite(value)
