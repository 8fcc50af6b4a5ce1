"""Read answers of an Open Reward Standard server with care: prompts, tools, results of calls."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import EpisodeError
from rollout_workers.tools.calling import Result
from rollout_workers.tools.tool_calls import Schemas
from rollout_workers.tools.tool_functions import ToolError

NO_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class LastCall:
    """Hidden tool that gets an answer without calls, in this argument if it has one."""

    name: str
    argument: str | None


@dataclass(frozen=True, slots=True)
class Opening:
    """Beginning of a task: the prompt, and the tools as JSON schemas."""

    text: str
    tools: Schemas
    last_call: LastCall | None


def json_of(text: str) -> Any:
    """Read JSON; raise EpisodeError if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _nonsense(text, "JSON") from None


def opening_of(prompt: Any, listed: Any) -> Opening:
    """Read a task's prompt and tools; raise EpisodeError if they are none."""
    try:
        prompt, listed = (_cleaned(answer) for answer in (prompt, listed))
        text = text_of(prompt)
    except (LookupError, TypeError, ValueError, RecursionError):
        raise _nonsense(prompt, "a prompt's blocks") from None
    try:
        tools = tuple(_schema_of(tool) for tool in listed["tools"])
        last = listed.get("terminal_tool")
        last_call = None if last is None else LastCall(str(last["name"]), last.get("arg"))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _nonsense(listed, "a list of tools") from None
    return Opening(text, tools, last_call)


def result_of(text: str) -> Result:
    """Return the result in a call's stream.

    >>> result_of('{"ok": true, "output": {"blocks": [{"type": "text", "text": "Yes."}], "reward": 1}}')
    Result(text='Yes.', reward=1.0, ends=False)

    Raises:
        ToolError: the server refused the call, in words for the model.
        EpisodeError: the text is no result.
    """
    answer = json_of(text)
    try:
        if answer["ok"] is False:
            raise ToolError(str(answer["error"]))
        output = answer["output"]
        reward, ends = output.get("reward"), output.get("finished", False)
        if isinstance(reward, bool | str) or not isinstance(ends, bool):
            raise TypeError
        number = float(reward or 0.0)
        if not math.isfinite(number):
            raise ValueError
        return Result(text_of(output["blocks"]), number, ends)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _nonsense(text, "a result with blocks, reward and finished") from None


def text_of(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return blocks as one text; name images.

    >>> text_of([{"type": "text", "text": "Look:"}, {"type": "image", "data": "", "mimeType": "image/png"}])
    'Look:\\n[image]'
    """
    texts = [block["text"] if block["type"] == "text" else f"[{block['type']}]" for block in blocks]
    return "\n".join(texts)


def _cleaned(answer: Any) -> Any:
    """Replace halves of surrogate pairs, which tokenizers reject."""
    return json.loads(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))


def _schema_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = tool.get("input_schema") or NO_ARGUMENTS
    if not isinstance(tool["name"], str) or not isinstance(parameters, Mapping):
        raise TypeError
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _nonsense(answer: Any, expected: str) -> EpisodeError:
    return EpisodeError(f"was answered by {answer!r:.200}; expected {expected}")
