"""A server of the protocol's own library over standard input and output, as its documentation shows one."""

import os
import time

from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@server.tool()
def refuse() -> str:
    """Answer by the protocol's own error, as some libraries do for wrong arguments."""
    raise MCPError(-32602, "Invalid params")


@server.tool()
def nothing() -> str:
    """Return an empty text."""
    return ""


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "late"


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def about(name: str) -> str:
    """Tell the process, or a variable of its environment."""
    return str(os.getpid()) if name == "process" else str(os.environ.get(name))


if __name__ == "__main__":
    server.run()
