"""Settings of every environment: how many at once, how long, what the model remembers; a prompt's seed."""

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field

from contracts.environments import Environment, Observation
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings


class MakesEnvironments(Protocol):
    """Interface of an environment's settings class."""

    def make(self) -> Environment: ...


class Interpreter(Protocol):
    """Interpreter between model and environment, in the worker, because only it knows the model's tokens."""

    def heard(self, text: str, tokens: Sequence[int]) -> str:
        """Return the form of an answer that the environment gets."""
        ...

    def read(self, observation: Observation) -> Observation:
        """Return the form of an observation that the model gets."""
        ...


class EnvironmentSettings(Settings):
    """Base of environments' settings classes; each makes environments of its kind.

    Example: a user's environment, chosen by `environment=my_module:Countdown`.

        class Countdown(EnvironmentSettings):
            start: int = 10

            def make(self) -> Environment:
                return CountdownGame(self.start)
    """

    rewards_itself: ClassVar[bool] = False  # its steps have rewards, so the run needs no others
    # A fresh turn begins another conversation, as a program's sub-agent does; else the model forgot old turns
    has_own_talks: ClassVar[bool] = False
    splits_credit: ClassVar[bool] = False  # divide a reward for the whole among their last answers
    has_baselines: ClassVar[bool] = False  # it names the valid actions and the expert's action
    needs_meta: ClassVar[tuple[str, ...]] = ()  # keys that it reads from a prompt's metadata
    # Its `leave` ends what a server holds for an episode that the worker ends, as after the last turn
    can_leave: ClassVar[bool] = False
    # False: an episode that exceeds the window ends; True: it continues, and the model forgets old turns
    may_forget: ClassVar[bool] = True

    num_parallel: int = Field(default=16, ge=1)  # episodes at once in a worker, each in a separate process
    max_turns: int = Field(default=20, ge=1)  # the model's turns until the episode is truncated
    # Past turns that the model sees; None: all of them, in one growing sequence, while they fit
    memory: int | None = Field(default=None, ge=0)
    reply_end: str = ""  # text after an answer whose tokens do not end with it
    # chat: by model.chat's template; plain: texts in a row; auto: chat if there is a template and the task's
    #     prompts are not raw text
    template: Literal["auto", "plain", "chat"] = "auto"
    example_rate: float = Field(default=0.0, ge=0, lt=1)  # share of training turns with a random valid action
    # Return-conditioned: contexts begin with the return to come: this one in play, the true one in training
    target_return: float | None = None
    # Texts that reward servers judge: all answers together, only the last one, or each
    reward_at: Literal["end", "answer", "turn"] = "end"
    isolated: bool = True  # False: in the worker's process, for debugging
    start_timeout_s: float = Field(default=60.0, gt=0)  # seconds until an episode has begun
    step_timeout_s: float = Field(default=30.0, gt=0)  # seconds until a step has its answer
    max_attempts: int = Field(default=3, ge=1)  # tries of an episode whose environment fails
    max_failures: int = Field(default=10, ge=0)  # failed episodes that a run allows

    def laid_out(self, by_template: bool) -> Self:
        """Return settings without auto in `template`, for a model with or without a template."""
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
        """Make an interpreter for a worker; None: model and environment exchange unchanged texts."""
        return None

    def make(self) -> Environment:
        """Make an environment, in the process in which it will run."""
        raise NotImplementedError


def seed_of(prompt: Prompt) -> int:
    """Return `meta["seed"]`, as task=episodes sets it, or a seed from the prompt's id.

    So all rollouts of a group play one episode, and held-out episodes stay held out.

    >>> seed_of(Prompt("p/0", "", meta={"seed": 7}))
    7
    >>> seed_of(Prompt("p/0", "")) == seed_of(Prompt("p/0", "")) != seed_of(Prompt("p/1", ""))
    True

    Raises:
        InputError: `meta["seed"]` is not a seed.
    """
    if "seed" not in prompt.meta:
        # many environments take no more bits
        return int.from_bytes(hashlib.sha256(prompt.id.encode()).digest()[:4]) >> 1
    seed = prompt.meta["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"prompt {prompt.id}: its seed is {seed!r}; expected a whole number from 0 on")
    return seed
