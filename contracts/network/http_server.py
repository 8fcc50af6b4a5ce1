"""Settings of the HTTP servers in our processes: quiet, and patient for a limited time.

connection ─▶ head of a request, within HEAD_S ─▶ body, within BODY_S (http_guard) ─▶ answer
           ◀─ closed, where a head is late, or after KEEP_S without a new one ◀──────────┘
"""

import asyncio
import contextlib
import resource
from functools import cache
from typing import Any

HEAD_S = 20.0  # deadline for a request's first line and headers
KEEP_S = 5  # how long a connection waits for a next request
MOST_WAITING = 2048  # connections that the kernel keeps until they are accepted


def server_config(app: Any) -> Any:
    """Return uvicorn's settings for an ASGI application."""
    import uvicorn

    _allow_connections()
    return uvicorn.Config(
        app,
        http=_protocol(),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        backlog=MOST_WAITING,
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=1,
    )


def _allow_connections() -> None:
    """Use as many open files as this user may, because each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems say "unlimited" but allow less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class TimedHead:
    """Part of a connection that closes it if a request's head is late; uvicorn's protocol is the rest."""

    cycle: Any  # uvicorn's newest request, from the end of its head
    transport: Any
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)  # type: ignore[misc]

    def _watch(self) -> None:
        """Start the clock at the wait for a head, stop it at a whole head."""
        if not self._awaits_head():
            self._forget()
        elif self._late is None:
            self._late = asyncio.get_running_loop().call_later(HEAD_S, self._close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None

    def _awaits_head(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _close(self) -> None:
        self._late = None
        if self._awaits_head() and not self.transport.is_closing():
            self.transport.close()


@cache
def _protocol() -> Any:
    """Return uvicorn's protocol with a limit on the time of a head, which uvicorn lacks."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    return type("Timed", (TimedHead, AutoHTTPProtocol), {})
