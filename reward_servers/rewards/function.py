"""A plain function of the user's own: it takes the samples, and returns a score for each, in order."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from pydantic import Field, PrivateAttr, model_validator

from contracts.components import import_module
from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings
from contracts.signatures import check_function
from contracts.working_folder import working_folder

Scores = Callable[[Sequence[Sample]], Sequence[float]]
SUFFIX = ".py"


class Function(Settings):
    """`function` is `package.module:name`, or `FILE.py:name`, seen from the working folder.

    Example: `Function(function="my_rewards:brevity").score([Sample(text="a b c")]) == [1.0]`
    """

    function: str = Field(pattern=r"^[^:]+:[^\W\d]\w*$")
    _score: Scores = PrivateAttr()

    @model_validator(mode="after")
    def _find(self) -> "Function":
        self._score = find_function(self.function)
        return self

    def score(self, samples: Sequence[Sample]) -> Sequence[float]:
        return self._score(samples)


def find_function(address: str) -> Scores:
    """The function at `package.module:name` or `FILE.py:name`.

    Raises:
        InputError: the module does not import, it has no such function, or that takes other arguments.
    """
    place, _, name = address.partition(":")
    where = f"function={address}"
    module = _of_file(place, where) if place.endswith(SUFFIX) else import_module(place, where)
    found = getattr(module, name, None)
    if not callable(found) or inspect.isclass(found):
        got = "there is none" if found is None else f"got {type(found).__name__}"
        raise InputError(f"{where}: expected a function {name}(samples) in {place}; {got}")
    check_function(where, found, ["samples"])
    scores: Scores = found
    return scores


def _of_file(place: str, where: str) -> ModuleType:
    """The module of a file; a process imports a file once."""
    path = Path(working_folder() or "", place).absolute()
    if not path.is_file():
        raise InputError(f"{where}: there is no file {path}; give its place: function=FILE.py:NAME")
    name = f"_reward_function_of_{path}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py there is always one
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        del sys.modules[name]
        raise InputError(f"{where}: importing {path} failed: {type(error).__name__}: {error}") from error
    return module
