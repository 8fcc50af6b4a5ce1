"""Settings of every environment: how many at once, how long, what the model remembers."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field

from contracts.environments import Environment, Observation
from contracts.rollout import Prompt
from contracts.settings import Settings


class MakesEnvironments(Protocol):
    """Interface of an environment's settings class."""

    def make(self) -> Environment: ...


class Interpreter(Protocol):
    """Interpreter between model and environment, in the worker, which alone knows the model's tokens."""

    def heard(self, text: str, tokens: Sequence[int]) -> str:
        """Return what the environment hears of an answer."""
        ...

    def read(self, observation: Observation) -> Observation:
        """Return what the model reads of an observation."""
        ...


class EnvironmentSettings(Settings):
    """Base of environments' settings classes; each makes environments of its kind.

    Example: a user's own environment, chosen by `environment=my_module:Countdown`.

        class Countdown(EnvironmentSettings):
            start: int = 10

            def make(self) -> Environment:
                return CountdownGame(self.start)
    """

    rewards_itself: ClassVar[bool] = False  # its steps have rewards: the run needs no other
    # A fresh turn begins a talk of its own, as of a program's sub-agent; else the model only forgot old turns
    has_own_talks: ClassVar[bool] = False
    splits_credit: ClassVar[bool] = False  # a reward for the whole is divided among the ends of such talks
    has_baselines: ClassVar[bool] = False  # it names the valid actions and the expert's
    needs_meta: ClassVar[tuple[str, ...]] = ()  # keys that it reads in a prompt's meta data
    # False: an episode that exceeds the window ends there; True: it goes on, and the model forgets old turns
    may_forget: ClassVar[bool] = True

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
    # Texts that reward servers judge: all answers together, the last one alone, or each
    reward_at: Literal["end", "answer", "turn"] = "end"
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

    def interpreter(self, tokenizer: Any) -> Interpreter | None:
        """Make an interpreter for a worker; None: model and environment read texts as they are."""
        return None

    def make(self) -> Environment:
        """Make an environment, in the process in which it will live."""
        raise NotImplementedError
