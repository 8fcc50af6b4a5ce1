"""An unchanged agent: a program that calls the model at a separate address, one process an episode."""

import shlex
import shutil
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from contracts.environments import Environment
from contracts.errors import InputError
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.frozen_partner import FrozenPartner
from rollout_workers.tools.tool_calls import HERMES, check_parser

WITHOUT_A_USE = ("memory", "reply_end", "example_rate", "target_return", "isolated")


class ProgramSettings(EnvironmentSettings):
    """Base of settings of programs that call the model like OpenAI's clients, one for each lease."""

    has_own_talks: ClassVar[bool] = True

    # true: a program writes its reward, a number, to the file that WHETSTONE_REWARD_FILE names
    reward_file: bool = True
    fault_reward: float | None = None  # reward if the program hangs or fails; None: try the episode again
    credit: Literal["episode", "split"] = "episode"  # sequences that get the reward, if calls make several
    # A model that never learns, for calls of the model `partner`; None: there is none
    partner_options: FrozenPartner | None = None
    tool_parser: str = HERMES  # how calls are read: hermes, or a vLLM parser, such as llama3_json
    token_budget: int | None = Field(default=None, ge=1)  # tokens that the model writes in an episode
    max_open_calls: int = Field(default=16, ge=1)  # calls that one program may have open at a time
    step_timeout_s: float = Field(default=60.0, gt=0)  # seconds between two calls of a program

    @property
    def rewards_itself(self) -> bool:  # type: ignore[override]
        """Return whether the programs write rewards; otherwise the run needs reward=."""
        return self.reward_file

    @property
    def splits_credit(self) -> bool:  # type: ignore[override]
        """Return whether each sequence earns a share."""
        return self.credit == "split"

    @model_validator(mode="after")
    def _takes_no_turns(self) -> Self:
        for name in WITHOUT_A_USE:
            if (setting := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={setting!r} does nothing if a program makes the calls; leave it out"
                )
        return self

    def check(self) -> None:
        check_parser(self.tool_parser)

    def words(self, prompt: str) -> list[str]:
        """Return the command for a prompt, word by word."""
        raise NotImplementedError

    def warm_words(self) -> list[str] | None:
        """Return the words for a warm parent (`programs/warm.py`); None: each lease starts a process."""
        return None

    def make(self) -> Environment:
        raise InputError("a rollout worker plays programs, not an environment object")


class Program(ProgramSettings):
    """Settings of a user's agent.

    Example: `environment=program environment.command="python agent.py --question {prompt}"`
    """

    command: str  # command line, in words as in a shell; {prompt} is the prompt's text

    @field_validator("command")
    @classmethod
    def _has_words(cls, value: str) -> str:
        if not shlex.split(value):
            raise ValueError("expected a command, such as 'python agent.py'")
        return value

    def check(self) -> None:
        super().check()
        check_program("environment.command", shlex.split(self.command)[0])

    def words(self, prompt: str) -> list[str]:
        """Return the command for a prompt, word by word.

        >>> Program(command="python agent.py --ask {prompt}").words("3 + 4 = ?")
        ['python', 'agent.py', '--ask', '3 + 4 = ?']
        """
        return [word.replace("{prompt}", prompt) for word in shlex.split(self.command)]


def check_program(key: str, program: str) -> None:
    """Check that a program can be started here.

    Raises:
        InputError: the program does not exist.
    """
    if shutil.which(program) is None:
        raise InputError(
            f"{key}: no program is named {program!r} on this machine; expected one in the PATH, or a "
            "path to one"
        )
