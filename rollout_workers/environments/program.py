"""An agent as it is: a program that calls the model at an address of its own, one process an episode."""

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
    """Base of settings of programs that call the model as OpenAI's clients do, one a lease."""

    has_own_talks: ClassVar[bool] = True

    # true: a program writes its reward, a number, to the file that WHETSTONE_REWARD_FILE names
    reward_file: bool = True
    fault_reward: float | None = None  # of a program that hangs or fails; None: its episode is tried again
    credit: Literal["episode", "split"] = "episode"  # who earns it where the calls make several sequences
    # A model that never learns, for calls of the model `partner`; None: there is none
    partner_options: FrozenPartner | None = None
    tool_parser: str = HERMES  # of programs that offer tools; or one of vLLM's, such as llama3_json
    token_budget: int | None = Field(default=None, ge=1)  # tokens that the model writes in an episode
    max_open_calls: int = Field(default=16, ge=1)  # of a program at once
    step_timeout_s: float = Field(default=60.0, gt=0)  # between two calls of a program

    @property
    def rewards_itself(self) -> bool:  # type: ignore[override]
        """Return whether the programs write rewards; else the run needs reward=."""
        return self.reward_file

    @property
    def splits_credit(self) -> bool:  # type: ignore[override]
        """Return whether each sequence earns a share."""
        return self.credit == "split"

    @model_validator(mode="after")
    def _takes_no_turns(self) -> Self:
        for name in WITHOUT_A_USE:
            if (given := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={given!r} does nothing where a program makes the calls; leave it out"
                )
        return self

    def check(self) -> None:
        check_parser(self.tool_parser)

    def words(self, prompt: str) -> list[str]:
        """Return the command for a prompt, word by word."""
        raise NotImplementedError

    def make(self) -> Environment:
        raise InputError("programs are played by a rollout worker, not as an environment object")


class Program(ProgramSettings):
    """Settings of an agent of one's own.

    Example: `environment=program environment.command="python agent.py --question {prompt}"`
    """

    command: str  # in words as a shell's; {prompt} is the prompt's text

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
        InputError: there is none.
    """
    if shutil.which(program) is None:
        raise InputError(
            f"{key}: there is no program {program!r} on this machine; expected one in the PATH, or a "
            "path to one"
        )
