"""Calls of tools in an episode: common settings of environments with tools, and a turn's calls."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from contracts.environments import Observation, Step
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.tools.tool_calls import HERMES, Call, Malformed, check_parser
from rollout_workers.tools.tool_functions import ToolError
from rollout_workers.tools.tool_interpreter import ToolInterpreter
from rollout_workers.tools.tool_texts import responded, results

CHARACTERS_OF_A_TOKEN = 32  # limit of a result on its way to the worker, which counts tokens


class CallSettings(EnvironmentSettings):
    """Base of the settings of environments whose tools the model calls."""

    may_forget: ClassVar[bool] = False

    tool_parser: str = HERMES  # how calls are read: hermes, or a vLLM parser, such as llama3_json
    max_calls: int = Field(default=16, ge=1)  # calls allowed in an episode; further calls get an error
    max_calls_per_turn: int = Field(default=4, ge=1)
    max_result_tokens: int = Field(default=256, ge=1)  # the rest of a result is cut
    error_reward: float = 0.0  # reward of each failed call

    @model_validator(mode="after")
    def _remembers(self) -> Self:
        if self.memory is not None:
            raise ValueError(f"memory={self.memory}: the model would forget the question; leave it out")
        if self.target_return is not None:
            raise ValueError(
                f"target_return={self.target_return:g}: there is no return to ask for; leave it out"
            )
        return self

    def check(self) -> None:
        """Look up the parser.

        Raises:
            InputError: no parser has this name.
        """
        check_parser(self.tool_parser)

    def interpreter(self, tokenizer: Any) -> ToolInterpreter:
        return ToolInterpreter(self.tool_parser, tokenizer, self.max_result_tokens)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a successful call. Example: the last one, `Result("Right.", 1.0, ends=True)`"""

    text: str
    reward: float = 0.0
    ends: bool = False  # the episode is over, and no further call is made


class Calling:
    """Calls of successive episodes, counted and limited; a subclass makes each call."""

    def __init__(self, settings: CallSettings) -> None:
        self._limits = settings

    def made(self, call: Call) -> Result:
        """Make one call.

        Raises:
            ToolError: the call failed; the model reads the message.
        """
        raise NotImplementedError

    def begin(self) -> None:
        """Begin an episode."""
        self._num_calls = self._num_made = self._num_errors = 0

    def answered(self, calls: Sequence[Call | Malformed], names: Collection[str]) -> Step:
        """Make a turn's calls.

        Args:
            names: the tools' names. A template must not write other names into the context.
        """
        called: list[str] = []
        contents: list[str] = []
        reward, ends = 0.0, False
        first = self._num_calls + 1
        for number, call in enumerate(calls):
            self._num_calls += 1
            name = call.name if isinstance(call, Call) else ""
            called.append(name if name in names else "")
            try:
                result = self._result(call, number)
                contents.append(self._cleaned(result.text))
                reward, ends = reward + result.reward, result.ends
            except ToolError as error:
                contents.append(self._cleaned(f"Error: {error}"))
                reward += self.failed()
            if ends:
                break
        observation = Observation(f"\n{responded(contents)}\n", messages=results(called, contents, first))
        return Step(observation, reward, terminated=ends, info=self.info())

    def failed(self) -> float:
        """Count an error and return its reward."""
        self._num_errors += 1
        return self._limits.error_reward

    def info(self) -> dict[str, float]:
        return {"calls": float(self._num_calls), "call_errors": float(self._num_errors)}

    def _result(self, call: Call | Malformed, number: int) -> Result:
        """Return the result of a turn's call `number`, counted from 0."""
        limits = self._limits
        if number >= limits.max_calls_per_turn:
            raise ToolError(f"only {limits.max_calls_per_turn} calls are made at a time; repeat this one")
        if self._num_made >= limits.max_calls:
            raise ToolError(f"all {limits.max_calls} calls have been made; answer without another one")
        self._num_made += 1
        if isinstance(call, Malformed):
            raise ToolError(f"this call can't be read: {call.why}: {call.text}")
        return self.made(call)

    def _cleaned(self, text: str) -> str:
        """Return the beginning of a text that a tokenizer accepts, without halves of surrogate pairs."""
        most = self._limits.max_result_tokens * CHARACTERS_OF_A_TOKEN
        return text[:most].encode("utf-8", "replace").decode()
