"""Find a model's tool calls in its answer: Hermes's and Qwen's form here, others by vLLM's parsers.

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "6 * 7"}}
    </tool_call>

A parser accepts any text of a model. A failed attempt at a call becomes `Malformed`, with a reason that the
model can read.
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
NOT_SENT = "it holds half of a surrogate pair, or a number that is too large"
MOST_DEEP = 64  # levels of an argument, because all code after this parser recurses into it
EXCERPT = 80  # characters of a model's text in a reason

Schemas = tuple[Mapping[str, Any], ...]  # JSON schemas of functions, as chat templates take them


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a tool. Example: `Call("calculator", {"expression": "6 * 7"})`"""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """Failed attempt at a call, with the reason. Example: `Malformed('{"name": 3}', "the name is …")`"""

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
    """Parse an answer in Hermes's form; calls inside `<think>` are thoughts.

    >>> hermes('Well.<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    Parsed(content='Well.', calls=(Call(name='now', arguments={}),))
    >>> hermes('<tool_call>now()</tool_call>').calls[0].why
    'it is no JSON (Expecting value at character 0)'
    """
    thought, mark, spoken = text.rpartition("</think>")
    spoken, unfinished, more = spoken.partition("<think>")
    content = [thought + mark]
    calls: list[Call | Malformed] = []
    while True:
        before, opened, rest = spoken.partition(OPENS)
        content.append(before)
        if not opened:
            content.append(unfinished + more)
            return Parsed("".join(content).strip(), tuple(calls))
        call, spoken = _first_call(rest)
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
        InputError: no parser has this name, vLLM is not installed, or the parser does not fit this tokenizer.
    """
    return hermes if name == HERMES else _OfVllm(name, _vllm_class(name), tokenizer)


def check_parser(name: str) -> None:
    """Check that a parser has this name; import vLLM for all except `hermes`.

    Raises:
        InputError: as in `parser_of`.
    """
    if name != HERMES:
        _vllm_class(name)


def as_text(parsed: Parsed) -> str:
    """Return a parsed answer as JSON for the environment; `of_text` reads it."""
    return json.dumps(asdict(parsed))


def of_text(text: str) -> Parsed:
    """
    >>> of_text(as_text(Parsed("Hm.", (Call("now", {}), Malformed("x", "it is no JSON")))))
    Parsed(content='Hm.', calls=(Call(name='now', arguments={}), Malformed(text='x', why='it is no JSON')))
    """
    fields = json.loads(text)
    calls = (Malformed(**call) if "why" in call else Call(**call) for call in fields["calls"])
    return Parsed(fields["content"], tuple(calls))


def _first_call(text: str) -> tuple[Call | Malformed, str]:
    """Return the first call, which follows an opening mark, and the text after the call.

    JSON is read as far as it goes, so a closing mark in an argument ends nothing.
    """
    begin = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder(strict=False, parse_constant=_no_number).raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        broken, rest = _broken(text)
        return Malformed(broken, f"it is no JSON ({_reason(error)})"), rest
    rest = text[end:].lstrip()
    if rest and not rest.startswith((CLOSES, OPENS)):
        broken, rest = _broken(text)
        return Malformed(broken, f"{CLOSES} does not follow its JSON"), rest
    return call_of(value), rest.removeprefix(CLOSES)


def call_of(value: Any) -> Call | Malformed:
    """Return the call that a JSON value describes; its arguments may be JSON in a text.

    >>> call_of({"name": "add", "arguments": '{"a": 1}'})
    Call(name='add', arguments={'a': 1})
    """
    if is_too_deep(value):
        return Malformed("", TOO_DEEP)
    text = json.dumps(value)[:EXCERPT]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return Malformed(text, f"it names no tool; expected {EXPECTED}")
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            return Malformed(text, f"its arguments are no JSON ({_reason(error)})")
    if (why := why_not_sent(arguments) or why_not_sent(value["name"])) is not None:
        return Malformed(text, why)
    if not isinstance(arguments, dict):
        return Malformed(text, f"its arguments are no JSON object; expected {EXPECTED}")
    return Call(value["name"], arguments)


def why_not_sent(value: Any) -> str | None:
    """Return why a server can't read a value that a model wrote as JSON; None: it can.

    >>> why_not_sent([{"a": 1e999}])
    'it holds half of a surrogate pair, or a number that is too large'
    """
    if is_too_deep(value):
        return TOO_DEEP
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return NOT_SENT
    return None


def _broken(text: str) -> tuple[str, str]:
    """Split a text after a broken first call."""
    end = ENDS_OF_A_BROKEN_CALL.search(text)
    assert end is not None, "every text has an end"
    return text[: end.start()].strip()[:EXCERPT], text[end.end() :]


def is_too_deep(value: Any, most: int = MOST_DEEP) -> bool:
    """Return whether a JSON value has more than `most` levels of lists and objects, without recursion."""
    level = [value]
    for _ in range(most):
        inner = [item.values() if isinstance(item, dict) else item for item in level if _holds(item)]
        level = [item for values in inner for item in values]
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
    """vLLM's parser, which returns a malformed call as the answer's text."""

    def __init__(self, name: str, parser: Any, tokenizer: Any) -> None:
        self._name, self._class, self._tokenizer = name, parser, tokenizer
        try:
            self._make(())
        except Exception as error:  # most parsers ask the tokenizer for the marks of their form
            raise InputError(
                f"environment.tool_parser={name} does not fit this model: {error}; expected its form's parser"
            ) from None

    def __call__(self, text: str, tools: Schemas) -> Parsed:
        try:
            extracted = self._extracted(text, tools)
            calls = tuple(
                call_of({"name": call.function.name, "arguments": call.function.arguments or "{}"})
                for call in extracted.tool_calls
            )
        except Exception as error:  # a parser may raise anything for a model's text
            why = f"vLLM's parser {self._name} could not read it: {type(error).__name__}: {error}"
            return Parsed(text, (Malformed(text[:EXCERPT], why),))
        return Parsed((extracted.content or "").strip() if calls else text.strip(), calls)

    def _extracted(self, text: str, tools: Schemas) -> Any:
        if self._tools != tools:
            self._make(tools)
        return self._parser.extract_tool_calls(text, self._request)

    def _make(self, tools: Schemas) -> None:
        """Make vLLM's parser for these tools."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        schemas = [dict(tool) for tool in tools] or None
        self._tools, self._request = tools, ChatCompletionRequest(model="", messages=[], tools=schemas)
        self._parser = self._class(self._tokenizer, self._request.tools)


def _vllm_class(name: str) -> Any:
    where = f"environment.tool_parser={name}"
    try:
        from vllm.tool_parsers import ToolParserManager
    except ImportError as error:
        raise InputError(f"{where} is a vLLM parser ({error}); expected {HERMES}, or install vLLM") from None
    known = [HERMES, *ToolParserManager.list_registered()]
    if name not in known:
        raise InputError(f"{where}: no parser has this name{did_you_mean(name, sorted(set(known)))}")
    return ToolParserManager.get_tool_parser(name)
