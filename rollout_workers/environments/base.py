"""Settings of every environment: how many at once, how long, what the model remembers."""

from typing import ClassVar, Literal, Protocol, Self

from pydantic import Field

from contracts.environments import Environment
from contracts.rollout import Prompt
from contracts.settings import Settings


class MakesEnvironments(Protocol):
    """Interface of an environment's settings class."""

    def make(self) -> Environment: ...


class EnvironmentSettings(Settings):
    """Base of environments' settings classes; each makes environments of its kind.

    Example: a user's own environment, chosen by `environment=my_module:Countdown`.

        class Countdown(EnvironmentSettings):
            start: int = 10

            def make(self) -> Environment:
                return CountdownGame(self.start)
    """

    rewards_itself: ClassVar[bool] = False  # its steps have rewards: the run needs no other
    has_baselines: ClassVar[bool] = False  # it names the valid actions and the expert's
    needs_meta: ClassVar[tuple[str, ...]] = ()  # keys that it reads in a prompt's meta data

    num_parallel: int = Field(default=16, ge=1)  # episodes at once in a worker, each in its own process
    max_turns: int = Field(default=20, ge=1)  # of the model; then the episode is truncated
    # Past turns that the model sees; None: all of them, in one growing sequence, while they fit
    memory: int | None = Field(default=None, ge=0)
    reply_end: str = ""  # text behind an answer whose own tokens do not end with it
    # chat: by model.chat's template; plain: texts in a row; auto: chat where there is a template and the
    # task's prompts are not raw text
    template: Literal["auto", "plain", "chat"] = "auto"
    example_rate: float = Field(default=0.0, ge=0, lt=1)  # share of training turns with a random valid action
    # Return-conditioned: contexts begin with the return to come, this one in play, the true one in training
    target_return: float | None = None
    reward_at: Literal["end", "turn"] = "end"  # whether reward servers judge the whole episode or each answer
    isolated: bool = True  # False: in the worker's own process, for debugging
    start_timeout_s: float = Field(default=60.0, gt=0)  # until an episode has begun
    step_timeout_s: float = Field(default=30.0, gt=0)  # until a step has its answer
    max_attempts: int = Field(default=3, ge=1)  # of an episode whose environment fails
    max_failures: int = Field(default=10, ge=0)  # failed episodes that a run allows

    def laid_out(self, by_template: bool) -> Self:
        """Return settings in which `template` is no longer auto, for a model with or without a template."""
        if self.template != "auto":
            return self
        return self.model_copy(update={"template": "chat" if by_template else "plain"})

    def check(self) -> None:
        """Check the environment's needs on this machine before anything starts.

        Raises:
            InputError: no episode could be played.
        """

    def check_prompt(self, prompt: Prompt) -> None:
        """Check a prompt before anything starts.

        Raises:
            InputError: the prompt can't be played.
        """

    def make(self) -> Environment:
        """Make an environment, in the process in which it will live."""
        raise NotImplementedError
