"""The model calls tools until it answers: Python functions, or those of an MCP server."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from contracts.conversations.chat import messages_of
from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from contracts.settings import Strings
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.tools.mcp_server import McpServer
from rollout_workers.tools.timed_calls import END_S
from rollout_workers.tools.tool_calls import HERMES, Call, Malformed, check_parser, of_text
from rollout_workers.tools.tool_functions import FunctionTools, Toolbox, ToolError
from rollout_workers.tools.tool_interpreter import ToolInterpreter
from rollout_workers.tools.tool_texts import described, responded, results

CHARACTERS_OF_A_TOKEN = 32  # more of a result never travels to the worker, which counts tokens
Entries = Annotated[
    tuple[str | dict[str, Any], ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]


class Tools(EnvironmentSettings):
    """Settings of tool use. An answer without a call is the last one, and `reward=` scores it alone.

    Example: `environment=tools 'environment.tools=[calculator, {name: search, folder: notes}, mine:weather]'`
    """

    may_forget: ClassVar[bool] = False

    max_turns: int = Field(default=8, ge=1)
    reward_at: Literal["end", "answer", "turn"] = "answer"
    # Names of built-in tools, package.module:function or :Class; with options {name: …, option: …}
    tools: Entries = ()
    mcp: str | None = (
        None  # command that starts an MCP server, which speaks over its standard input and output
    )
    mcp_variables: Strings = ()  # names of environment variables that the server gets
    tool_parser: str = HERMES  # or one of vLLM's, such as llama3_json
    max_calls: int = Field(default=16, ge=1)  # in an episode; further calls get an error
    max_calls_per_turn: int = Field(default=4, ge=1)
    call_timeout_s: float = Field(default=5.0, gt=0)
    max_result_tokens: int = Field(default=256, ge=1)  # the rest of a result is cut
    call_rewards: dict[str, float] = Field(default_factory=dict)  # of each call that succeeds, by tool
    error_reward: float = 0.0  # of each call that fails

    @property
    def rewards_itself(self) -> bool:  # type: ignore[override]
        """Return whether calls have rewards."""
        return bool(self.call_rewards or self.error_reward)

    @model_validator(mode="after")
    def _can_call(self) -> "Tools":
        if not self.tools and self.mcp is None:
            raise ValueError("got no tools; expected tools=[NAME, …], or mcp=COMMAND")
        if self.memory is not None:
            raise ValueError(f"memory={self.memory}: the model would forget the question; leave it out")
        if self.target_return is not None:
            raise ValueError(
                f"target_return={self.target_return:g}: there is no return to ask for; leave it out"
            )
        longest_s = self.max_calls_per_turn * (self.call_timeout_s + END_S)
        if longest_s >= self.step_timeout_s:
            raise ValueError(
                f"max_calls_per_turn={self.max_calls_per_turn} calls, each of at most call_timeout_s="
                f"{self.call_timeout_s:g} and {END_S:g} s to end it, may take {longest_s:g} s; "
                f"expected less than step_timeout_s={self.step_timeout_s:g}, which ends the environment"
            )
        return self

    def check(self) -> None:
        """Make the tools once, and look up the parser.

        Raises:
            InputError: there is no such tool or parser, or a name that rewards a tool is none.
        """
        check_parser(self.tool_parser)
        self._toolbox().close()

    def check_prompt(self, prompt: Prompt) -> None:
        """Refuse a prompt with tools of its own, which nothing here could call.

        Raises:
            InputError: it names tools.
        """
        if prompt.tools:
            raise InputError(
                f"environment=tools: prompt {prompt.id} brings tools of its own, as schemas alone; expected "
                f"none, and functions with environment.tools"
            )

    def interpreter(self, tokenizer: Any) -> ToolInterpreter:
        return ToolInterpreter(self.tool_parser, tokenizer, self.max_result_tokens)

    def make(self) -> Environment:
        return _Calling(self, self._toolbox())

    def _toolbox(self) -> "_Toolboxes":
        made: list[Toolbox] = [FunctionTools(self.tools)] if self.tools else []
        if self.mcp is not None:
            made.append(McpServer(self.mcp, self.mcp_variables, self.start_timeout_s / 2))
        found = _Toolboxes(made)
        unknown = sorted(self.call_rewards.keys() - found.names)
        if unknown:
            found.close()
            raise InputError(
                f"environment.call_rewards: there is no tool {unknown[0]!r}; {there_are(found.names)}"
            )
        return found


class _Toolboxes:
    """Several toolboxes as one.

    Raises:
        InputError: two tools have one name.
    """

    def __init__(self, boxes: Sequence[Toolbox]) -> None:
        self._boxes = boxes
        self._owners: dict[str, Toolbox] = {}
        self.schemas = tuple(schema for box in boxes for schema in box.schemas)
        for box in boxes:
            for schema in box.schemas:
                name = str(schema["function"]["name"])
                if name in self._owners:
                    self.close()
                    raise InputError(f"environment.tools, environment.mcp: both have a tool {name!r}")
                self._owners[name] = box

    @property
    def names(self) -> list[str]:
        return list(self._owners)

    def reset(self, prompt: Prompt) -> None:
        for box in self._boxes:
            box.reset(prompt)

    def call(self, call: Call, seconds: float) -> str:
        if call.name not in self._owners:
            raise ToolError(f"there is no tool {call.name!r}; {there_are(self.names)}")
        return self._owners[call.name].call(call.name, call.arguments, seconds)

    def close(self) -> None:
        for box in self._boxes:
            box.close()


class _Calling:
    """Episodes one after the other: a question, calls and results in turn, and an answer."""

    def __init__(self, settings: Tools, toolbox: _Toolboxes) -> None:
        self._settings, self._toolbox = settings, toolbox

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._toolbox.reset(prompt)
        self._num_calls = self._num_made = self._num_errors = 0
        schemas = self._toolbox.schemas
        header = "" if self._settings.template == "chat" else f"{described(schemas)}\n\n"
        return Observation(prompt.text, header, messages=tuple(messages_of(prompt)), tools=schemas)

    def step(self, text: str) -> Step:
        calls = of_text(text).calls
        if not calls:
            return Step(Observation(""), terminated=True, info=self._info())
        names, contents, reward = [], [], 0.0
        first = self._num_calls + 1
        for number, call in enumerate(calls):
            self._num_calls += 1
            name = call.name if isinstance(call, Call) else ""
            names.append(name if name in self._toolbox.names else "")  # a template writes it into the context
            try:
                contents.append(_cleaned(self._result(call, number), self._settings.max_result_tokens))
                reward += self._settings.call_rewards.get(names[-1], 0.0)
            except ToolError as error:
                self._num_errors += 1
                reward += self._settings.error_reward
                contents.append(_cleaned(f"Error: {error}", self._settings.max_result_tokens))
        told = Observation(f"\n{responded(contents)}\n", messages=results(names, contents, first))
        return Step(told, reward, info=self._info())

    def close(self) -> None:
        self._toolbox.close()

    def _result(self, call: Call | Malformed, number: int) -> str:
        """Return the result of a turn's call `number`, from 0 on."""
        settings = self._settings
        if number >= settings.max_calls_per_turn:
            raise ToolError(f"only {settings.max_calls_per_turn} calls are made at a time; repeat this one")
        if self._num_made >= settings.max_calls:
            raise ToolError(f"all {settings.max_calls} calls have been made; answer without another one")
        self._num_made += 1
        if isinstance(call, Malformed):
            raise ToolError(f"this call can't be read: {call.why}: {call.text}")
        return self._toolbox.call(call, settings.call_timeout_s)

    def _info(self) -> dict[str, float]:
        return {"calls": float(self._num_calls), "call_errors": float(self._num_errors)}


def _cleaned(text: str, max_tokens: int) -> str:
    """Return the beginning of a text that a tokenizer takes: half a character pair is none."""
    return text[: max_tokens * CHARACTERS_OF_A_TOKEN].encode("utf-8", "replace").decode()
