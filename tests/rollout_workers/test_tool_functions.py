"""Tools as functions: their schemas against transformers' own, checked arguments, and calls that go wrong."""

import asyncio
import sys
import threading
import time
from typing import Any, Literal

import pytest
from transformers.utils import get_json_schema

from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.tools.timed_calls import TimedCalls
from rollout_workers.tools.tool_functions import FunctionTools, ToolError, schema_of

HERE = __name__


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """Tell the weather.

    Args:
        city: where
        days: how many
        unit: of the temperature
    """
    return {"city": city, "days": days, "unit": unit}


async def later(text: str) -> str:
    """Say it later.

    Args:
        text: what
    """
    await asyncio.sleep(0)
    return text.upper()


def fails(how: str) -> str:
    """Fail.

    Args:
        how: the way
    """
    if how == "exit":
        sys.exit(3)
    raise KeyError(how)


async def cancelled() -> str:
    """End by a cancelled task, as a closed connection's may be."""
    task = asyncio.ensure_future(later("so"))
    task.cancel()
    return await task


def hangs(seconds: float) -> str:
    """Hang, in Python or in the kernel.

    Args:
        seconds: in the kernel; 0: in Python, for good
    """
    time.sleep(seconds)
    while not seconds:
        pass
    return "late"


def bare(text):  # type: ignore[no-untyped-def]
    """Have no type hints."""


class Counter:
    def __init__(self, start: int = 0) -> None:
        self._start = self._count = start

    def reset(self, prompt: Prompt) -> None:
        self._count = self._start

    def count(self) -> int:
        """Count one more."""
        self._count += 1
        return self._count

    def told(self) -> str:
        """Tell the count."""
        return str(self._count)


def test_schemas_are_transformers_own() -> None:
    tools = FunctionTools([f"{HERE}:weather", "calculator"])
    from services.data.tools.calculator import calculator

    assert tools.schemas == (get_json_schema(weather), get_json_schema(calculator))
    assert tools.schemas[0]["function"]["parameters"] == {  # by hand
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "days": {"type": "integer", "description": "how many"},
            "unit": {"type": "string", "enum": ["C", "F"], "description": "of the temperature"},
        },
        "required": ["city"],
    }


def test_arguments_are_checked_and_results_become_text() -> None:
    tools = FunctionTools([f"{HERE}:weather", f"{HERE}:later"])
    assert (
        tools.call("weather", {"city": "Rome", "days": "2"}, 5.0)
        == '{"city": "Rome", "days": 2, "unit": "C"}'
    )
    assert tools.call("later", {"text": "so"}, 5.0) == "SO"
    for wrong, what in (
        ({}, "city: Missing"),
        ({"city": "Rome", "days": "two"}, "days: Input should be a valid"),
    ):
        with pytest.raises(ToolError, match=f"wrong arguments: {what}"):
            tools.call("weather", wrong, 5.0)
    with pytest.raises(ToolError, match="where: Unexpected keyword argument"):
        tools.call("weather", {"city": "Rome", "where": 1}, 5.0)


def test_an_error_and_an_exit_are_told() -> None:
    tools = FunctionTools([f"{HERE}:fails", f"{HERE}:cancelled"])
    with pytest.raises(ToolError, match="CancelledError"):
        tools.call("cancelled", {}, 5.0)
    with pytest.raises(ToolError, match="KeyError: 'so'"):
        tools.call("fails", {"how": "so"}, 5.0)
    with pytest.raises(ToolError, match="SystemExit: 3"):
        tools.call("fails", {"how": "exit"}, 5.0)


def test_a_call_ends_after_its_time() -> None:
    tools = FunctionTools([f"{HERE}:hangs"])
    with pytest.raises(ToolError, match=r"no result within 0\.2 s"):
        tools.call("hangs", {"seconds": 0.0}, 0.2)
    tools.reset(Prompt("p", ""))  # the loop was told to end
    assert not any(thread.name == "tool" for thread in threading.enumerate())


def test_a_call_that_does_not_end_is_counted_until_it_does() -> None:
    calls, over = TimedCalls(), threading.Event()
    with pytest.raises(TimeoutError):
        calls.call(lambda: over.wait(60), 0.1)
    assert calls.num_left() == 1
    assert calls.call(lambda: 6 * 7, 5.0) == 42
    over.set()
    assert calls.num_left(wait_s=30) == 0


def test_a_classs_methods_share_an_object_and_an_episode_begins_afresh() -> None:
    tools = FunctionTools([{"name": f"{HERE}:Counter", "start": 3}])
    assert [schema["function"]["name"] for schema in tools.schemas] == ["count", "told"]
    assert [tools.call("count", {}, 5.0) for _ in range(2)] == ["4", "5"]
    assert tools.call("told", {}, 5.0) == "5"
    tools.reset(Prompt("p", ""))
    assert tools.call("told", {}, 5.0) == "3"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("calculater", "did you mean 'calculator'"),
        (f"{HERE}:wether", "has no function or class 'wether'"),
        ("no_such_module:tool", "importing no_such_module failed"),
        (f"{HERE}:bare", "bare has no schema .* expected type hints for all arguments"),
        ({"name": f"{HERE}:weather", "city": "Rome"}, r"takes no options; got \['city'\]"),
        ({"name": f"{HERE}:Counter", "strat": 3}, "its constructor raised TypeError"),
        ({"name": "search", "folder": "no/such/folder"}, "has no file that ends in .md, .txt"),
    ],
)
def test_a_wrong_entry_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FunctionTools([entry])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two tools have the name 'weather'"):
        FunctionTools([f"{HERE}:weather", f"{HERE}:weather"])


def test_a_schema_needs_a_docstring() -> None:
    def nameless(text: str) -> str:
        return text

    with pytest.raises(InputError, match="nameless has no schema"):
        schema_of(nameless)
