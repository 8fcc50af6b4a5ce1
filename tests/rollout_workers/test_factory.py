"""An environment by what makes it: of our protocol, or Gymnasium's; and whether it rewards by itself."""

from collections.abc import Callable
from typing import Any

import pytest

from contracts.environments import Observation, Step
from contracts.errors import InputError
from contracts.objects import held
from contracts.rollout import Prompt
from rollout_workers.environments.factory import Factory
from tests.rollout_workers.gymnasium_worlds import Corridor, Guess

PROMPT = Prompt("p", "Find it.", meta={"seed": 4})


class Game:
    """A game of our protocol, whose steps have rewards."""

    rewards_itself = True

    def __init__(self) -> None:
        self.closed = False

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation(f"{prompt.text}?")

    def step(self, text: str) -> Step:
        return Step(Observation(text), reward=1.0, terminated=True)

    def close(self) -> None:
        self.closed = True


def with_factory(made_by: Any, use: Callable[[Factory], Any]) -> Any:
    with held({"own@1": b""}, {"own@1": made_by}):
        return use(Factory(factory="object:own@1"))


@pytest.mark.parametrize("made_by", [Guess, lambda: Guess(), Guess()], ids=["class", "function", "instance"])
def test_gymnasiums_are_played_as_by_gymnasium_text(made_by: Any) -> None:
    def use(factory: Factory) -> tuple[bool, Observation, Step]:
        factory.check()
        made = factory.make()
        return factory.rewards_itself, made.reset(PROMPT, 0), made.step("no number")

    rewards_itself, begun, step = with_factory(made_by, use)
    assert rewards_itself
    assert begun == Observation("guess a number below 10.\n", header="Find it.\n")
    assert step.info == {"steps": 1, "invalid": 1.0}
    assert not getattr(made_by, "closed", False)  # an instance is the only one


def test_a_game_says_itself_whether_it_rewards() -> None:
    class Silent(Game):
        rewards_itself = False

    for made_by, rewards_itself in ((Game, True), (lambda: Game(), True), (Silent, False), (Silent(), False)):
        assert with_factory(made_by, lambda factory: factory.rewards_itself) is rewards_itself
        assert with_factory(made_by, lambda factory: factory.make().reset(PROMPT, 0).text) == "Find it.?"


def test_what_can_not_be_played_is_refused_before_the_start() -> None:
    def broken() -> Game:
        raise ValueError("no board")

    with pytest.raises(InputError, match=r"^environment=object:own@1: it raised ValueError: no board$"):
        with_factory(broken, lambda factory: factory.check())
    with pytest.raises(InputError, match="its observations are Box"):
        with_factory(Corridor, lambda factory: factory.check())
    with pytest.raises(InputError, match=r"contracts\.rollout has no Game"):
        Factory(factory="contracts.rollout:Game").check()
