"""A user's environment from a Python function or class without arguments that makes it."""

from functools import cached_property
from typing import Any, cast

from contracts.components import import_module
from contracts.environments import Environment
from contracts.errors import InputError
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.gymnasium_text import GymnasiumText


class Factory(EnvironmentSettings):
    """Environment of `whetstone.train(environment=f)`; each episode's process calls `f` once."""

    factory: str  # an address: object:make_game@…, or package.module:make_game

    @cached_property
    def rewards_itself(self) -> bool:  # type: ignore[override]
        """Return the made environment's `rewards_itself`; a Gymnasium environment always rewards."""
        try:
            made = self._made()
        except InputError:  # `check` raises it if the environment is needed
            return True
        self._close(made)
        return bool(getattr(made, "rewards_itself", _is_gymnasium(made)))

    def check(self) -> None:
        """Make an environment and close it, because only then its type and its spaces are known."""
        self._close(self.make())

    def make(self) -> Environment:
        made = self._made()
        if _is_gymnasium(made):
            return GymnasiumText.model_construct(class_path=self.factory).played(made)
        return cast(Environment, made)

    def _made(self) -> Any:
        try:
            return self._maker() if callable(self._maker) else self._maker
        except InputError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise InputError(f"{self._where}: it raised {type(error).__name__}: {error}") from error

    def _close(self, made: Any) -> None:
        if callable(self._maker):  # otherwise it is the only one
            made.close()

    @property
    def _where(self) -> str:
        return f"environment={self.factory}"

    @property
    def _maker(self) -> Any:
        module, _, name = self.factory.partition(":")
        maker = getattr(import_module(module, self._where), name, None)
        if maker is None:
            raise InputError(f"{self._where}: {module} has no {name}")
        return maker


def _is_gymnasium(made: Any) -> bool:
    import gymnasium

    return isinstance(made, gymnasium.Env)
