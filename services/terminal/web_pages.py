"""Serve a command's pages from this machine until Ctrl-C, by default on loopback."""

import base64
import contextlib
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import InputError
from contracts.network.access import check_exposure
from services.terminal.interrupts import StopRequest
from services.terminal.templates import templates_in

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse

LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Door:
    """Listening address of the page; a context that closes it."""

    socket: socket.socket
    host: str
    token: str | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.socket.getsockname()[1]}/"

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def listen(host: str, port: int, token: str | None) -> Door:
    """Listen on the address, before a model is loaded.

    Raises:
        InputError: listening failed, or others could reach the address and no token is set.
    """
    check_exposure(host, token)
    if port > LAST_PORT:  # getaddrinfo would silently use another one
        raise InputError(f"--port {port}: expected {LAST_PORT} at most")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return Door(socket.create_server(address[:2], family=family), host, token or None)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"can't listen on {host}:{port}: {reason}; choose another --host or --port"
        ) from None


def serve_pages(door: Door, app: Any) -> None:
    """Print the address, and serve the application there until Ctrl-C."""
    import uvicorn

    from contracts.network.http_server import server_config

    with_token = " and give it the token" if door.token else ""
    print(f"Open {door.url} in a browser{with_token}. Ctrl-C ends it.", flush=True)
    server, stop = uvicorn.Server(server_config(app)), StopRequest()
    setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010  (StopRequest handles signals)
    stop.hold(lambda: setattr(server, "should_exit", True))
    try:
        server.run(sockets=[door.socket])
    finally:
        stop.restore()


def page_of(template: Path) -> "HTMLResponse":
    """Render a page with a new nonce, so that foreign scripts and styles do not run."""
    from fastapi.responses import HTMLResponse

    environment = templates_in(template.parent)
    nonce = base64.b64encode(secrets.token_bytes(16)).decode()
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    text = environment.get_template(template.name).render(nonce=nonce)
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})
