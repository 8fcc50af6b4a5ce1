"""What every environment can be told: how many at once, how long, what the model remembers."""

from typing import ClassVar, Literal, Protocol

from pydantic import Field

from contracts.environments import Environment
from contracts.rollout import Prompt
from contracts.settings import Settings


class MakesEnvironments(Protocol):
    """What an environment's settings class has to do."""

    def make(self) -> Environment: ...


class EnvironmentSettings(Settings):
    """The base of an environment's settings class, which makes environments of its kind.

    Example: an environment of one's own, asked for with `environment=my_module:Countdown`.

        class Countdown(EnvironmentSettings):
            start: int = 10

            def make(self) -> Environment:
                return CountdownGame(self.start)
    """

    rewards_itself: ClassVar[bool] = False  # its steps are worth something: no reward needs to be given
    has_baselines: ClassVar[bool] = False  # it says which actions are valid, and what an expert would do
    needs_meta: ClassVar[tuple[str, ...]] = ()  # what it reads of a prompt's meta data

    num_parallel: int = Field(default=16, ge=1)  # episodes at once in a worker, each in its own process
    max_turns: int = Field(default=20, ge=1)  # of the model; then the episode is cut off
    # Turns that the model sees of its past; None: all of them, in one growing sequence, while they fit
    memory: int | None = Field(default=None, ge=0)
    reply_end: str = ""  # what is written behind an answer where the model's own tokens do not say it
    template: Literal["plain", "chat"] = "plain"  # chat: the tokenizer's chat template
    example_rate: float = Field(default=0.0, ge=0, lt=1)  # training turns that a random valid action takes
    # Return-conditioned: every context begins with the return to come, at play this one; trained on the true
    target_return: float | None = None
    reward_at: Literal["end", "turn"] = "end"  # what the reward servers judge: the whole, or each answer
    isolated: bool = True  # False: in the worker's own process, for looking into one
    start_timeout_s: float = Field(default=60.0, gt=0)
    step_timeout_s: float = Field(default=30.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)  # of an episode whose environment fails
    max_failures: int = Field(default=10, ge=0)  # episodes a run may fail to play before it stops

    def check(self) -> None:
        """Look at what it needs on this machine before anything is started.

        Raises:
            InputError: not one episode could be played.
        """

    def check_prompt(self, prompt: Prompt) -> None:
        """Look at a prompt before anything is started.

        Raises:
            InputError: it can't be played.
        """

    def make(self) -> Environment:
        """One environment; called in the process in which it will live."""
        raise NotImplementedError
