"""Tools of an MCP server, as its own library serves them over standard input and output."""

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.tools.mcp_server import McpServer
from rollout_workers.tools.tool_functions import ToolError

COMMAND = f"python {shlex.quote(str(Path(__file__).parents[1] / 'tool_server.py'))}"
PROMPT = Prompt("p", "")


@pytest.fixture(scope="module")
def server() -> Iterator[McpServer]:
    made = McpServer(COMMAND, start_s=120)
    yield made
    made.close()


def gone(process: int) -> bool:
    until = time.monotonic() + 60
    while psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_schemas_and_results_are_the_servers(server: McpServer) -> None:
    first = server.schemas[0]["function"]
    assert (first["name"], first["description"]) == ("add", "Add two numbers.")
    properties = first["parameters"]["properties"]
    assert {name: of["type"] for name, of in properties.items()} == {"a": "integer", "b": "integer"}
    server.reset(PROMPT)
    assert server.call("add", {"a": 40, "b": 2}, 60.0) == "42"


def test_errors_are_told_and_the_server_lives_on(server: McpServer) -> None:
    server.reset(PROMPT)
    process = server.call("about", {"name": "process"}, 60.0)
    for name, arguments, expected in (
        ("fail", {"text": "no"}, "fail"),
        ("add", {"a": "x"}, "valid integer"),
        ("refuse", {}, "Invalid params"),
    ):
        with pytest.raises(ToolError, match=expected):
            server.call(name, arguments, 60.0)
    assert server.call("nothing", {}, 60.0) == ""
    assert server.call("about", {"name": "process"}, 60.0) == process


def test_after_a_time_out_or_an_end_the_next_episode_has_a_new_server(server: McpServer) -> None:
    for name, arguments, seconds, message in (
        ("wait", {"seconds": 600}, 0.5, r"no result within 0\.5 s"),
        ("leave", {}, 60.0, "closed"),
    ):
        server.reset(PROMPT)
        process = int(server.call("about", {"name": "process"}, 60.0))
        with pytest.raises(ToolError, match=message):
            server.call(name, arguments, seconds)
        with pytest.raises(ToolError, match="the server of this tool has ended"):
            server.call("add", {"a": 1, "b": 2}, 60.0)
        assert gone(process)
    server.reset(PROMPT)
    assert server.call("add", {"a": 1, "b": 2}, 60.0) == "3"


def test_a_server_that_does_not_start_again_may_do_so_later(tmp_path: Path) -> None:
    was_here, script = tmp_path / "was_here", tmp_path / "once.py"
    script.write_text(
        f"import pathlib, runpy\n"
        f"pathlib.Path({str(was_here)!r}).touch(exist_ok=False)\n"
        f"runpy.run_path({str(Path(__file__).parents[1] / 'tool_server.py')!r}, run_name='__main__')\n"
    )
    server = McpServer(f"python {script}", start_s=120)
    with pytest.raises(ToolError, match="closed"):
        server.call("leave", {}, 60.0)
    with pytest.raises(RuntimeError, match=r"(?s)did not list its tools: .*FileExistsError"):
        server.reset(PROMPT)
    was_here.unlink()
    server.reset(PROMPT)
    assert server.call("add", {"a": 1, "b": 2}, 60.0) == "3"
    server.close()


def test_a_server_gets_the_named_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_A_SERVICE", "abc")
    monkeypatch.setenv("ANOTHER_KEY", "def")
    server = McpServer(COMMAND, ["KEY_OF_A_SERVICE"], start_s=120)
    texts = [server.call("about", {"name": name}, 60.0) for name in ("KEY_OF_A_SERVICE", "ANOTHER_KEY")]
    process = int(server.call("about", {"name": "process"}, 60.0))
    server.close()
    assert texts == ["abc", "None"] and gone(process)


def test_a_server_ends_with_a_process_that_is_killed() -> None:
    program = (
        "import os, sys; from rollout_workers.tools.mcp_server import McpServer; "
        f"server = McpServer({COMMAND!r}, start_s=120); "
        "print(server.call('about', {'name': 'process'}, 60.0), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=200)
    assert done.returncode == -9 and gone(int(done.stdout))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program x", "no program is named 'no-such-program'"),
        (f"python {Path(__file__).with_name('no_such_file.py')}", "did not list its tools: .*No such file"),
        (f"{sys.executable} -c 'print(1)'", "did not list its tools"),
    ],
)
def test_what_is_no_server_is_refused(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        McpServer(command, start_s=60)
    with pytest.raises(InputError, match="mcp_variables: NO_SUCH_VARIABLE is not set"):
        McpServer(COMMAND, ["NO_SUCH_VARIABLE"])
