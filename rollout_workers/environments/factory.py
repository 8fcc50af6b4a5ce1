"""Your own environment by what makes it: a function or a class without arguments, given from Python."""

from typing import Any

from contracts.components import import_module
from contracts.environments import Environment
from contracts.errors import InputError
from rollout_workers.environments.base import EnvironmentSettings


class Factory(EnvironmentSettings):
    """Environment of `whetstone.train(environment=make_game)`: each episode's process calls it once."""

    factory: str  # an address: object:make_game@…, or package.module:make_game

    def make(self) -> Environment:
        module, _, name = self.factory.partition(":")
        where = f"environment={self.factory}"
        found: Any = getattr(import_module(module, where), name, None)
        if found is None:
            raise InputError(f"{where}: {module} has no {name}")
        made: Environment = found() if callable(found) else found
        return made
