"""The model calls tools until it answers: Python functions, or tools of an MCP server."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from contracts.conversations.chat import messages_of
from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from contracts.settings import Strings
from rollout_workers.tools.calling import Calling, CallSettings, Result
from rollout_workers.tools.mcp_server import McpServer
from rollout_workers.tools.timed_calls import END_S
from rollout_workers.tools.tool_calls import Call, of_text
from rollout_workers.tools.tool_functions import FunctionTools, Toolbox, ToolError
from rollout_workers.tools.tool_texts import described

Entries = Annotated[
    tuple[str | dict[str, Any], ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]


class Tools(CallSettings):
    """Settings of tool use. An answer without a call is the last one, and `reward=` scores only this answer.

    Example: `environment=tools 'environment.tools=[calculator, {name: search, folder: notes}, mine:weather]'`
    """

    max_turns: int = Field(default=8, ge=1)
    reward_at: Literal["end", "answer", "turn"] = "answer"
    # Names of built-in tools, package.module:function or :Class; with options {name: …, option: …}
    tools: Entries = ()
    mcp: str | None = None  # command that starts an MCP server, which uses its standard input and output
    mcp_variables: Strings = ()  # names of environment variables that the server gets
    call_timeout_s: float = Field(default=5.0, gt=0)
    call_rewards: dict[str, float] = Field(default_factory=dict)  # reward of each successful call, by tool

    @property
    def rewards_itself(self) -> bool:  # type: ignore[override]
        """Return whether calls have rewards."""
        return bool(self.call_rewards or self.error_reward)

    @model_validator(mode="after")
    def _can_call(self) -> "Tools":
        if not self.tools and self.mcp is None:
            raise ValueError("got no tools; expected tools=[NAME, …], or mcp=COMMAND")
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
            InputError: a tool or parser does not exist, or call_rewards names an unknown tool.
        """
        super().check()
        self._toolbox().close()

    def check_prompt(self, prompt: Prompt) -> None:
        """Refuse a prompt with tools, which nothing here could call.

        Raises:
            InputError: the prompt names tools.
        """
        if prompt.tools:
            raise InputError(
                f"environment=tools: prompt {prompt.id} brings tools, but only as schemas; expected "
                f"none, and functions with environment.tools"
            )

    def make(self) -> Environment:
        return _Calling(self, self._toolbox())

    def _toolbox(self) -> "_Toolboxes":
        made: list[Toolbox] = [FunctionTools(self.tools)] if self.tools else []
        if self.mcp is not None:
            made.append(McpServer(self.mcp, self.mcp_variables, self.start_timeout_s / 2))
        toolboxes = _Toolboxes(made)
        unknown = sorted(self.call_rewards.keys() - toolboxes.names)
        if unknown:
            toolboxes.close()
            raise InputError(
                f"environment.call_rewards: no tool is named {unknown[0]!r}; {there_are(toolboxes.names)}"
            )
        return toolboxes


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


class _Calling(Calling):
    """Successive episodes: a question, calls and results in turn, and an answer."""

    def __init__(self, settings: Tools, toolbox: _Toolboxes) -> None:
        super().__init__(settings)
        self._settings, self._toolbox = settings, toolbox

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._toolbox.reset(prompt)
        self.begin()
        schemas = self._toolbox.schemas
        header = "" if self._settings.template == "chat" else f"{described(schemas)}\n\n"
        return Observation(prompt.text, header, messages=tuple(messages_of(prompt)), tools=schemas)

    def step(self, text: str) -> Step:
        calls = of_text(text).calls
        if not calls:
            return Step(Observation(""), terminated=True, info=self.info())
        return self.answered(calls, self._toolbox.names)

    def close(self) -> None:
        self._toolbox.close()

    def made(self, call: Call) -> Result:
        text = self._toolbox.call(call, self._settings.call_timeout_s)
        return Result(text, self._settings.call_rewards.get(call.name, 0.0))
