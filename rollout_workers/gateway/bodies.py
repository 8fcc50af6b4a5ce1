"""Read the bodies of OpenAI's two calls, and refuse unsupported options.

An unsupported option that would change the answer is refused. A program never gets an answer that ignores its
options, except for sampling: in training, the run's sampling decides.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.conversations.called_tools import arguments_of
from contracts.conversations.messages import Message, conversation, is_conversation
from contracts.errors import InputError
from rollout_workers.tools.tool_calls import MOST_DEEP, TOO_DEEP, is_too_deep

MOST_CHOICES = 64
MOST_TEXTS = 1024  # answers of one call: prompts times choices
MOST_STOPS = 64
LEAST_PENALTY, MOST_PENALTY = 0.01, 100  # bounds of the repetition penalty; no model writes sense beyond
HOTTEST = 2  # temperature, of OpenAI and vLLM
MOST_LEVELS = 2 * MOST_DEEP  # nesting of a body and its calls' arguments, because later code recurses into it
PARTNER = "partner"  # the model name of a frozen model beside the policy
ROLE = re.compile(r"policy/([\w-]{1,32})")
A_CALL = '{"type": "function", "function": {"name": "add", "arguments": "{}"}}'
HALF_A_PAIR = rb"\ud"
# Options that are read below, or do not change the text.
IGNORED = frozenset(
    (
        *("model", "messages", "prompt", "tools", "stream", "stream_options", "max_tokens"),
        *("max_completion_tokens", "stop", "n", "temperature", "top_p", "top_k", "seed", "user", "metadata"),
        *("store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("parallel_tool_calls", "min_tokens", "repetition_penalty"),
    )
)
# Options with the values that change nothing; other values are refused.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}


class Refused(Exception):
    """A call that gets an error in OpenAI's form."""

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one call.

    Example: `Asked(model="any", messages=({"role": "user", "content": "3 + 4?"},), max_tokens=16)`
    """

    model: str
    messages: tuple[Message, ...] = ()  # the chat's messages; () for a completion
    tools: tuple[Any, ...] = ()  # schemas of functions that the model may call
    prompt: str | tuple[int, ...] = ""  # the completion's prompt: a text, or tokens
    more_prompts: tuple[str | tuple[int, ...], ...] = ()  # further prompts of the same call
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_choices: int = 1
    streams: bool = False
    streams_usage: bool = False
    temperature: float | None = None  # None: not given; in training, the run's sampling decides
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    num_bytes: int = 0  # size of the body

    @property
    def is_chat(self) -> bool:
        return bool(self.messages)

    @property
    def role(self) -> str:
        """Return the policy's role: `critic` of the model `policy/critic`, "" of most other names.

        Raises:
            Refused: the name begins like a role's, but is none.
        """
        if not self.model.startswith("policy/"):
            return ""
        if (role := ROLE.fullmatch(self.model)) is None:
            raise Refused(
                404,
                f"model={self.model!r:.80}: expected a role of 1 to 32 letters, digits, - or _, such as "
                "policy/critic",
                "model_not_found",
            )
        return role[1]


def read_chat(body: bytes) -> Asked:
    """Return the options of a call of /v1/chat/completions.

    Raises:
        Refused: the body is no such call, or has an unsupported option.
    """
    fields = _object(body)
    messages = _messages(fields.get("messages"))
    tools = fields.get("tools", []) if fields.get("tool_choice") != "none" else []
    if not isinstance(tools, list) or not all(map(_is_function, tools)):
        raise Refused(400, f"tools: expected a list of functions with names, got {tools!r:.80}")
    if tools and fields.get("parallel_tool_calls", True) is not True:  # a cut answer's tokens would differ
        raise Refused(
            400,
            f"parallel_tool_calls={fields['parallel_tool_calls']!r:.80} is not supported here with tools: an "
            "answer may hold several calls; leave it out",
            "unsupported_option",
        )
    return Asked(messages=tuple(messages), tools=tuple(tools), num_bytes=len(body), **_shared(fields))


def read_completion(body: bytes) -> Asked:
    """Return the options of a call of /v1/completions.

    Raises:
        Refused: the body is no such call, or has an unsupported option.
    """
    fields = _object(body)
    prompts = fields.get("prompt")
    if not isinstance(prompts, list) or (prompts and type(prompts[0]) is int):
        prompts = [prompts]
    first, *more = [_prompt(prompt) for prompt in prompts] or [_prompt([])]
    shared = _shared(fields)
    if len(prompts) * shared["num_choices"] > MOST_TEXTS:
        raise Refused(400, f"prompt, n: expected at most {MOST_TEXTS} texts a call, got more")
    return Asked(prompt=first, more_prompts=tuple(more), num_bytes=len(body), **shared)


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return tuple(prompt)
    if prompt and isinstance(prompt, str):
        return prompt
    raise Refused(400, f"prompt: expected a text, a list of tokens, or a list of either, got {prompt!r:.80}")


def _messages(talk: Any) -> list[dict[str, Any]]:
    for number, message in enumerate(talk if is_conversation(talk) else (), start=1):
        calls = message.get("tool_calls")
        if calls and not (isinstance(calls, list) and all(map(_is_call, calls))):
            raise Refused(
                400,
                f"messages, message {number}: tool_calls: expected a list of calls such as {A_CALL}, got "
                f"{calls!r:.80}",
            )
    try:
        messages = conversation(talk, "messages", keeps_nulls=True)
        calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
        arguments = [arguments_of(call["arguments"]) for call in calls]
    except InputError as error:
        raise Refused(400, str(error)) from None
    if not messages or is_too_deep([messages, arguments], MOST_LEVELS):
        raise Refused(400, f"messages, arguments of a call: {TOO_DEEP}")
    return messages


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments", ""), str | dict)
    )


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def json_object(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object, which all later programs can read and write.

    Raises:
        Refused: the body is no object, is nested too deeply, or holds half a surrogate pair.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is no JSON object")
    if is_too_deep(fields, MOST_LEVELS):
        raise Refused(400, f"the body: {TOO_DEEP}; expected at most {MOST_LEVELS} levels")
    if HALF_A_PAIR in body.lower():  # tokenizers reject such a character
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise Refused(400, f"the body holds half a surrogate pair: {error}") from None
    return fields


def _object(body: bytes) -> dict[str, Any]:
    fields = json_object(body)
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        if name not in IGNORED and value not in NEUTRAL.get(name, ()):
            expected = f"; expected {NEUTRAL[name][0]!r}, or leave it out" if name in NEUTRAL else ""
            raise Refused(400, f"{name}={value!r:.80} is not supported here{expected}", "unsupported_option")
    return fields


def _shared(fields: Mapping[str, Any]) -> dict[str, Any]:
    stop = fields.get("stop", ())
    stop = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else stop
    if not isinstance(stop, tuple) or not all(isinstance(text, str) and text for text in stop):
        raise Refused(400, f"stop: expected texts, got {stop!r:.80}")
    if len(stop) > MOST_STOPS:  # the engine looks for each at every token
        raise Refused(400, f"stop: expected at most {MOST_STOPS} texts, got {len(stop)}")
    longest = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    for name, kind, expected in (
        ("model", str, "a name"),
        ("user", str, "a text"),
        ("stream", bool, "true or false"),
    ):
        if not isinstance(fields.get(name, kind()), kind):
            raise Refused(400, f"{name}: expected {expected}, got {fields[name]!r:.80}")
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or (options and not fields.get("stream")):
        raise Refused(400, f"stream_options: expected an object, with stream=true, got {options!r:.80}")
    return {
        "model": fields.get("model", ""),
        "max_tokens": _number(fields, longest, int, lambda value: value >= 1, "1 or more"),
        "stop": stop,
        "num_choices": _number(fields, "n", int, lambda n: 1 <= n <= MOST_CHOICES, f"1 to {MOST_CHOICES}")
        or 1,
        "streams": fields.get("stream", False),
        "streams_usage": options.get("include_usage") is True,
        "temperature": _number(
            fields, "temperature", float, lambda value: 0 <= value <= HOTTEST, f"0 to {HOTTEST}"
        ),
        "top_p": _number(fields, "top_p", float, lambda value: 0 < value <= 1, "above 0, at most 1"),
        "top_k": _number(fields, "top_k", int, lambda value: value >= 0, "0 or more"),
        "min_tokens": _number(fields, "min_tokens", int, lambda value: value >= 0, "0 or more"),
        "repetition_penalty": _number(
            fields,
            "repetition_penalty",
            float,
            lambda value: LEAST_PENALTY <= value <= MOST_PENALTY,
            f"{LEAST_PENALTY} to {MOST_PENALTY}",
        ),
        "seed": _number(fields, "seed", int, lambda value: True, "an integer"),
    }


def _number(
    fields: Mapping[str, Any], name: str, kind: type, fits: Callable[[Any], bool], expected: str
) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int) or (kind is float and isinstance(value, float))
    if isinstance(value, bool) or not is_number or not fits(value):
        raise Refused(400, f"{name}: expected {expected}, got {value!r:.80}")
    return kind(value)
