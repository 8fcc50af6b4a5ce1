"""Find a model's tool calls in its answer: Hermes's and Qwen's form here, others by vLLM's parsers.

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "6 * 7"}}
    </tool_call>

A parser returns whatever a model writes: what was to be a call and is none becomes `Malformed`, with a reason
that the model can read.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contracts.errors import InputError, did_you_mean

HERMES = "hermes"
OPENS, CLOSES = "<tool_call>", "</tool_call>"
ENDS_OF_A_BROKEN_CALL = re.compile(rf"{CLOSES}|(?={OPENS})|\Z")
EXPECTED = '{"name": "a tool", "arguments": {"an argument": "a value"}}'
TOO_DEEP = "it is nested too deeply"
MOST_DEEP = 64  # levels of an argument: everything behind this parser recurses into it
EXCERPT = 80  # characters of a model's text in a reason

Schemas = tuple[Mapping[str, Any], ...]  # JSON schemas of functions, as chat templates take them


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a tool. Example: `Call("calculator", {"expression": "6 * 7"})`"""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that was to be a call, and why it is none. Example: `Malformed('{"name": 3}', "the name is …")`"""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """Answer of a model: its text without calls, and the calls in order.

    Example: `Parsed("I shall compute it.", (Call("calculator", {"expression": "6 * 7"}),))`
    """

    content: str
    calls: tuple[Call | Malformed, ...] = ()


Parser = Callable[[str, Schemas], Parsed]


def hermes(text: str, tools: Schemas = ()) -> Parsed:
    """Parse an answer in Hermes's form; calls inside of `<think>` are thoughts.

    >>> hermes('Well.<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    Parsed(content='Well.', calls=(Call(name='now', arguments={}),))
    >>> hermes('<tool_call>now()</tool_call>').calls[0].why
    'it is no JSON (Expecting value at character 0)'
    """
    thought, mark, said = text.rpartition("</think>")
    said, unfinished, more = said.partition("<think>")
    content = [thought + mark]
    calls: list[Call | Malformed] = []
    while True:
        before, opened, rest = said.partition(OPENS)
        content.append(before)
        if not opened:
            content.append(unfinished + more)
            return Parsed("".join(content).strip(), tuple(calls))
        call, said = _first_call(rest)
        calls.append(call)


def written(calls: Sequence[Call]) -> str:
    """Return calls in Hermes's form, as a model would write them.

    >>> print(written([Call("now", {})]))
    <tool_call>
    {"name": "now", "arguments": {}}
    </tool_call>
    """
    lines = (json.dumps(asdict(call), ensure_ascii=False) for call in calls)
    return "\n".join(f"{OPENS}\n{line}\n{CLOSES}" for line in lines)


def parser_of(name: str, tokenizer: Any) -> Parser:
    """Return the parser of this name: `hermes`, or one that vLLM registers, such as `llama3_json`.

    Raises:
        InputError: there is no such parser, vLLM is not installed, or the parser is not for this tokenizer.
    """
    return hermes if name == HERMES else _OfVllm(name, _vllm_class(name), tokenizer)


def check_parser(name: str) -> None:
    """Check that there is a parser of this name; imports vLLM for all but `hermes`.

    Raises:
        InputError: as `parser_of`.
    """
    if name != HERMES:
        _vllm_class(name)


def as_text(parsed: Parsed) -> str:
    """Return a parsed answer as JSON, in which it travels to the environment; `of_text` reads it."""
    return json.dumps(asdict(parsed))


def of_text(text: str) -> Parsed:
    """
    >>> of_text(as_text(Parsed("Hm.", (Call("now", {}), Malformed("x", "it is no JSON")))))
    Parsed(content='Hm.', calls=(Call(name='now', arguments={}), Malformed(text='x', why='it is no JSON')))
    """
    found = json.loads(text)
    calls = (Malformed(**each) if "why" in each else Call(**each) for each in found["calls"])
    return Parsed(found["content"], tuple(calls))


def _first_call(text: str) -> tuple[Call | Malformed, str]:
    """Return the call at the beginning, behind its opening mark, and the text behind the call.

    JSON is read as far as it goes, so that a closing mark in an argument ends nothing.
    """
    begin = len(text) - len(text.lstrip())
    try:
        found, end = json.JSONDecoder(strict=False, parse_constant=_no_number).raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        broken, rest = _broken(text)
        return Malformed(broken, f"it is no JSON ({_reason(error)})"), rest
    rest = text[end:].lstrip()
    if rest and not rest.startswith((CLOSES, OPENS)):
        broken, rest = _broken(text)
        return Malformed(broken, f"{CLOSES} does not follow its JSON"), rest
    return call_of(found), rest.removeprefix(CLOSES)


def call_of(found: Any) -> Call | Malformed:
    """Return the call that a JSON value describes; its arguments may be JSON in a text.

    >>> call_of({"name": "add", "arguments": '{"a": 1}'})
    Call(name='add', arguments={'a': 1})
    """
    if is_too_deep(found):
        return Malformed("", TOO_DEEP)
    text = json.dumps(found)[:EXCERPT]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        return Malformed(text, f"it names no tool; expected {EXPECTED}")
    arguments = found.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            return Malformed(text, f"its arguments are no JSON ({_reason(error)})")
    if is_too_deep(arguments):
        return Malformed(text, TOO_DEEP)
    if not isinstance(arguments, dict):
        return Malformed(text, f"its arguments are no JSON object; expected {EXPECTED}")
    return Call(found["name"], arguments)


def _broken(text: str) -> tuple[str, str]:
    """Split a text behind the first call, which is broken."""
    end = ENDS_OF_A_BROKEN_CALL.search(text)
    assert end is not None, "every text has an end"
    return text[: end.start()].strip()[:EXCERPT], text[end.end() :]


def is_too_deep(value: Any, most: int = MOST_DEEP) -> bool:
    """Return whether a JSON value has more than `most` levels of lists and objects, without recursion."""
    level = [value]
    for _ in range(most):
        inner = [each.values() if isinstance(each, dict) else each for each in level if _holds(each)]
        level = [each for values in inner for each in values]
        if not level:
            return False
    return True


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return TOO_DEEP if isinstance(error, RecursionError) else str(error)


class _OfVllm:
    """Parser of vLLM's, which returns a malformed call as the answer's text."""

    def __init__(self, name: str, parser: Any, tokenizer: Any) -> None:
        self._name, self._class, self._tokenizer = name, parser, tokenizer
        try:
            self._make(())
        except Exception as error:  # most ask the tokenizer for the marks of their form
            raise InputError(
                f"environment.tool_parser={name} is not for this model: {error}; expected its form's parser"
            ) from None

    def __call__(self, text: str, tools: Schemas) -> Parsed:
        try:
            found = self._extracted(text, tools)
            calls = tuple(
                call_of({"name": call.function.name, "arguments": call.function.arguments or "{}"})
                for call in found.tool_calls
            )
        except Exception as error:  # a parser may raise anything at what a model wrote
            why = f"vLLM's parser {self._name} could not read it: {type(error).__name__}: {error}"
            return Parsed(text, (Malformed(text[:EXCERPT], why),))
        return Parsed((found.content or "").strip() if calls else text.strip(), calls)

    def _extracted(self, text: str, tools: Schemas) -> Any:
        if self._tools != tools:
            self._make(tools)
        return self._parser.extract_tool_calls(text, self._request)

    def _make(self, tools: Schemas) -> None:
        """Make vLLM's parser for these tools."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        told = [dict(tool) for tool in tools] or None
        self._tools, self._request = tools, ChatCompletionRequest(model="", messages=[], tools=told)
        self._parser = self._class(self._tokenizer, self._request.tools)


def _vllm_class(name: str) -> Any:
    where = f"environment.tool_parser={name}"
    try:
        from vllm.tool_parsers import ToolParserManager
    except ImportError as error:
        raise InputError(
            f"{where} is a parser of vLLM's ({error}); expected {HERMES}, or install vLLM"
        ) from None
    known = [HERMES, *ToolParserManager.list_registered()]
    if name not in known:
        raise InputError(f"{where}: there is no such parser{did_you_mean(name, sorted(set(known)))}")
    return ToolParserManager.get_tool_parser(name)
