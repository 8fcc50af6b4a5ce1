"""Tools of a server that speaks the Model Context Protocol (MCP) over its standard input and output.

Each environment has a server process, which ends with it. The protocol's library is asynchronous, so a thread
runs its event loop.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as OutOfTime
from importlib.util import find_spec
from typing import Any

from contracts.errors import InputError
from contracts.processes.working_folder import working_folder
from contracts.rollout import Prompt
from contracts.secrets.redaction import redact
from rollout_workers.tools.tool_functions import ToolError

# The kernel ends the server when this process dies; its number and signal are PR_SET_PDEATHSIG, SIGKILL.
ENDS_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
PYTHON = ("python", "python3")
EXCERPT = 500  # characters of a server's last words in a message
CLOSE_S = 10.0


class McpServer:
    """Toolbox of a server. If it ended, or left a call without an answer, the next episode starts a new one.

    Example: `McpServer("python server.py").call("add", {"a": 1, "b": 2}, 5.0) == "3"`

    Args:
        command: as typed in a shell, without its special characters; `python` is this Python.
        variables: names of environment variables that the server gets besides PATH, HOME and the like.
        start_s: seconds within which it must list its tools.

    Raises:
        InputError: the server does not start, or has no tools.
    """

    def __init__(self, command: str, variables: Sequence[str] = (), start_s: float = 30.0) -> None:
        self._where = f"environment.mcp={command!r}"
        if find_spec("mcp") is None:
            raise InputError(
                f"{self._where} needs the package mcp, which comes with vLLM; pip install 'mcp>=2'"
            )
        self._command, self._variables, self._start_s = command, variables, start_s
        self._connection: _Connection | None = self._connected()
        self.schemas = self._connection.schemas

    def reset(self, prompt: Prompt) -> None:
        """Begin an episode; the server keeps its memory.

        Raises:
            RuntimeError: a server that ended does not restart; a later attempt may succeed.
        """
        try:
            self._connection = self._connection or self._connected()
        except InputError as error:  # it has started before, so the command is right
            raise RuntimeError(str(error)) from None

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> str:
        if self._connection is None:
            raise ToolError("the server of this tool has ended; answer without it")
        try:
            result = self._connection.call(name, arguments, seconds)
        except OutOfTime:
            self._give_up()
            raise ToolError(f"no result within {seconds:g} s") from None
        except Exception as error:  # the library, the server or the pipe between them failed
            if not _is_answer(error):
                self._give_up()
            raise ToolError(_said(error)) from None
        if result.is_error:
            raise ToolError(_text_of(result))
        return _text_of(result)

    def close(self) -> None:
        """End the server."""
        if self._connection is not None:
            self._connection.close(CLOSE_S)
        self._connection = None

    def _give_up(self) -> None:
        """End the server without waiting for its end."""
        if self._connection is not None:
            self._connection.close(0.0)
        self._connection = None

    def _connected(self) -> "_Connection":
        words = shlex.split(self._command)
        if words and words[0] in PYTHON:
            words[0] = sys.executable
        if not words or shutil.which(words[0]) is None:
            raise InputError(
                f"{self._where}: no program is named {words[0] if words else ''!r}; expected a command"
            )
        missing = [name for name in self._variables if name not in os.environ]
        if missing:
            raise InputError(f"environment.mcp_variables: {missing[0]} is not set; set it in the environment")
        variables = {name: os.environ[name] for name in self._variables}
        made = _Connection(words, variables)
        try:
            made.start(self._start_s)
        except Exception as error:  # the library, the server or the pipe between them failed
            made.close(CLOSE_S)
            raise InputError(
                f"{self._where} did not list its tools: {_said(error)}{made.last_words()}"
            ) from None
        if not made.schemas:
            made.close(CLOSE_S)
            raise InputError(f"{self._where}: the server has no tools")
        return made


class _Connection:
    """One server process and the thread that talks to it."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self._words, self._variables = words, variables
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (closed with the object)
        self._ready: Future[Any] = Future()
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self.schemas: tuple[Mapping[str, Any], ...] = ()

    def start(self, seconds: float) -> None:
        self._thread.start()
        self._client = self._ready.result(seconds)
        self.schemas = tuple(_schema_of(tool) for tool in self._soon(_tools_of(self._client), seconds))

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        return self._soon(self._client.call_tool(name, dict(arguments)), seconds)

    def close(self, wait_s: float) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(wait_s)

    def last_words(self) -> str:
        """Return the server's last words on standard error, for a message."""
        self._said.seek(0)
        words = redact(self._said.read().strip())[-EXCERPT:]
        return f"; it said: {words}" if words else ""

    def _soon(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        finally:
            future.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except Exception as error:  # raised again by `start`
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            with contextlib.suppress(Exception):
                self._loop.close()

    async def _live(self) -> None:
        from mcp.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        server = StdioServerParameters(
            command=sys.executable,
            args=["-I", "-S", "-c", ENDS_WITH_ITS_PARENT, *self._words],
            env=dict(self._variables),
            cwd=working_folder(),
        )
        async with Client(stdio_client(server, errlog=self._said)) as client:
            self._ready.set_result(client)
            await self._is_over.wait()


async def _tools_of(client: Any) -> list[Any]:
    """Return all tools of a server, which may list them in pages."""
    tools, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools


def _schema_of(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _said(error: BaseException) -> str:
    """
    >>> _said(ExceptionGroup("several", [ConnectionError("the pipe is closed")]))
    'ConnectionError: the pipe is closed'
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_answer(error: Exception) -> bool:
    """Return whether the server itself refused the call, and so continues."""
    from mcp.shared.exceptions import MCPError
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    return isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)


def _text_of(result: Any) -> str:
    """Return a result's texts; name other contents."""
    return "\n".join(
        content.text if content.type == "text" else f"[{content.type}]" for content in result.content
    )
