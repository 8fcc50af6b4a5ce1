"""Settings under `curriculum.`: choose the next prompts by pass rates or with a user's class."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from pydantic import ConfigDict, Field, model_validator

from contracts.components import create
from contracts.rollout import Prompt
from contracts.settings import Settings, build

if TYPE_CHECKING:  # numpy takes a while
    from numpy.random import Generator

PASS_RATE = "pass_rate"


class Curriculum(Protocol):
    """A user's class that chooses the prompts of a run. Each part of a mixture has its own object.

    It may also have `metrics(self)`, which returns numbers by name for the run's log.
    """

    def choose(self, prompts: Sequence[Prompt], count: int, rng: "Generator") -> Sequence[str]:
        """Return the ids of the next `count` prompts. A prompt may come several times.

        Prompts that were chosen earlier may still be in flight.

        Args:
            prompts: all training prompts of the run, or of the part.
            rng: seeded by the run's seed and the number of prompts chosen so far.
        """
        ...

    def observe(self, prompt: Prompt, scores: Sequence[float]) -> None:
        """Record the rewards of a prompt's answers, at least one, once all of them are finished."""
        ...

    def state(self) -> Any:
        """Return, as JSON, the state that `choose` uses and `observe` changes; checkpoints keep it."""
        ...

    def load_state(self, state: Any) -> None:
        """Continue, in a new object, from a result of `state`."""
        ...


class CurriculumSettings(Settings):
    """A curriculum by pass rates.

    Example: `curriculum=pass_rate` is `CurriculumSettings()`; for rewards from 0 to 10,
    `curriculum.solved_at=8`
    """

    # pass_rate: by the running average of the share of a prompt's answers that solve it; or FILE.py:Class
    by: Literal["pass_rate"] = "pass_rate"
    solved_at: float = 1.0  # least reward with which an answer solves its prompt
    # Share of the epochs for a prompt that is always or never solved
    least_share: float = Field(default=0.1, ge=0.01, le=1)


class OwnCurriculum(Settings):
    """Curriculum by a user's class. All other keys are arguments of its constructor.

    Example: `curriculum=my.py:Retire curriculum.after=2` is `OwnCurriculum(by="my.py:Retire", after=2)`
    """

    model_config = ConfigDict(extra="allow")

    by: str

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        self.make()
        return self

    def make(self) -> Curriculum:
        """Return a new object of the class.

        Raises:
            InputError: there is no such class, it lacks a method, or its constructor rejects an option.
        """
        built_in, options = {PASS_RATE: ""}, self.model_extra or {}
        made: Curriculum = create("curriculum", self.by, options, built_in, Curriculum)
        return made


AnyCurriculum = CurriculumSettings | OwnCurriculum


def typed(value: Any) -> Any:
    """Return the settings from a name or a mapping with options; return anything else unchanged."""
    if isinstance(value, str):
        value = {"by": value}
    if not isinstance(value, Mapping):
        return value
    is_own = value.get("by", PASS_RATE) != PASS_RATE
    return build(OwnCurriculum if is_own else CurriculumSettings, value, "curriculum")
