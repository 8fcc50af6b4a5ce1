"""Order of prompts that a user's class chooses, with checks of its results."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.config.curriculum_settings import Curriculum, OwnCurriculum
from services.config.measures import finite_number
from services.training.sources.prompt_order import expect_count


class OwnOrder:
    """Order by a user's class with `choose`, `observe`, `state` and `load_state`.

    Random numbers depend on the seed and on the number of chosen prompts, so they need no state. A restored
    order has a new object of the class, so an incomplete `state` shows at once, not only after a kill.
    """

    def __init__(self, curriculum: OwnCurriculum, prompts: Sequence[Prompt], seed: int) -> None:
        self._asked, self._seed = curriculum, seed
        self._where = f"curriculum={curriculum.by}"
        self._prompts = tuple(prompts)
        self._places = {prompt.id: place for place, prompt in enumerate(self._prompts)}
        self._own: Curriculum = curriculum.make()
        self._position = 0
        if len(self._places) < len(self._prompts):
            twice = next(p.id for place, p in enumerate(self._prompts) if self._places[p.id] != place)
            raise InputError(
                f"{self._where}: several prompts have the id {twice!r}, by which choose() names them; "
                "expected different ids"
            )

    @property
    def epochs(self) -> float:
        """Return the number of chosen prompts in epochs."""
        return self._position / len(self._prompts)

    def next(self, n: int) -> list[int]:
        """Return the next `n` prompts as indices.

        Raises:
            InputError: `choose` raised, or returned anything but `n` ids of prompts.
        """
        if not n:
            return []
        rng = np.random.default_rng(np.random.SeedSequence((self._seed, self._position)))
        chosen = self._call("choose", lambda: self._own.choose(self._prompts, n, rng))
        if isinstance(chosen, str | Mapping) or not isinstance(chosen, Sequence | np.ndarray):
            raise InputError(
                f"{self._where}: choose() returned {chosen!r:.200}; expected a list of {n} prompts' ids, "
                f"such as [{self._prompts[0].id!r}]"
            )
        if strange := [id for id in chosen if not isinstance(id, str) or id not in self._places]:
            shown = f"a {type(strange[0]).__name__}, {strange[0]!r:.80}"
            raise InputError(
                f"{self._where}: choose() returned {shown}, which is not an id of the {len(self._prompts)} "
                f"prompts; expected prompt.id of {n} of them, such as {self._prompts[0].id!r}"
            )
        if len(chosen) != n:
            raise InputError(
                f"{self._where}: choose() returned {len(chosen)} prompts; expected count={n}. If too few "
                "are left, repeat some: a prompt may come several times"
            )
        self._position += n
        return [self._places[id] for id in chosen]

    def learn(self, index: int, rewards: Sequence[float]) -> None:
        """Tell the class the rewards of a prompt's answers, unless all were lost."""
        if rewards:
            self._call("observe", lambda: self._own.observe(self._prompts[index], list(rewards)))

    def metrics(self) -> dict[str, float]:
        """Return the results of the class's `metrics`, if it has this method.

        Raises:
            InputError: `metrics` raised an error, or did not return finite numbers by name.
        """
        if not callable(tell := getattr(self._own, "metrics", None)):
            return {}
        metrics = self._call("metrics", tell)
        if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
            raise InputError(
                f"{self._where}: metrics() returned {metrics!r:.200}; expected numbers by name, such as "
                "{'retired': 3}"
            )
        return {
            f"curriculum/{name}": finite_number(self._where, name, value) for name, value in metrics.items()
        }

    def state(self) -> dict[str, Any]:
        return {
            "prompts_count": len(self._prompts),
            "seed": self._seed,
            "position": self._position,
            "curriculum": self._own_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another order's state, with a new object of the class.

        Raises:
            InputError: the number of prompts has changed, or the new object's state differs from it.
        """
        expect_count(state, len(self._prompts))
        self._seed, self._position = state["seed"], state["position"]
        self._own = self._asked.make()
        kept = state["curriculum"]
        self._call("load_state", lambda: self._own.load_state(json.loads(json.dumps(kept))))
        if self._own_state() != kept:
            raise InputError(
                f"{self._where}: after load_state(), state() returns {self._own_state()!r:.200}, not "
                f"the loaded state, {kept!r:.200}; expected a load_state that sets all that state() returns"
            )

    def rehearse(self, count: int, group_size: int) -> None:
        """Try the class before the run starts, with made-up rewards. The order can't be used afterwards.

        Every second prompt earns nothing. In other groups every second answer earns 1.

        Raises:
            InputError: a run would reject the class's results, or a resumed run would choose other prompts.
        """
        for place, index in enumerate(self.next(count)):
            self.learn(index, [float(place % 2 and number % 2) for number in range(group_size)])
        self.metrics()
        resumed = OwnOrder(self._asked, self._prompts, self._seed)
        resumed.restore(self.state())
        if resumed.next(count) != self.next(count):
            raise InputError(
                f"{self._where}: a new object chooses other prompts after load_state(), and so would a "
                "resumed run; expected a state() with all that choose() depends on, and chance only from rng"
            )

    def _own_state(self) -> Any:
        """Return a copy of the class's state.

        Raises:
            InputError: `state` raised an error, or JSON can't hold its result.
        """
        state = self._call("state", self._own.state)
        if strange := self._call("state", lambda: _not_json(state, "state()")):  # the call catches recursion
            raise InputError(
                f"{self._where}: {strange}. Expected values that JSON keeps: dicts with texts as keys, "
                "lists, texts, finite numbers, True, False and None"
            )
        return json.loads(json.dumps(state))

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # a user's code may raise anything
            raise InputError(f"{self._where}: {method}() raised {type(error).__name__}: {error}") from error


def _not_json(value: Any, place: str) -> str | None:
    """Describe what JSON would lose or change in a value; None if it changes nothing.

    >>> _not_json({"rates": [0.5, (1, 2)]}, "state()")
    "state()['rates'][1] is (1, 2), a tuple"
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{place} has the key {key!r}, of type {type(key).__name__}"
            if strange := _not_json(inner, f"{place}[{key!r}]"):
                return strange
        return None
    if isinstance(value, list):
        within = (_not_json(inner, f"{place}[{index}]") for index, inner in enumerate(value))
        return next((strange for strange in within if strange), None)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    return f"{place} is {value!r:.80}, a {type(value).__name__}"
