"""The guard of our HTTP services: it admits programs of this machine, and callers with the token.

    request ─▶ Host ─▶ Origin, token ─▶ size of the body ─▶ the application ─▶ headers on every answer

Without a token a service listens on loopback. A foreign web page could still send requests through a browser
on this machine. The checks of Origin and Sec-Fetch-Site refuse that page's forms and scripts. The check of
Host refuses a page whose domain name points to this machine (DNS rebinding).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect

from contracts.network.access import knows

OWN_NAMES = ("localhost", "127.0.0.1", "::1")
BODY_S = 60.0  # deadline for a body to arrive
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOO_LARGE, TOO_SLOW = 413, 408
CODES = {400: "invalid_host", 401: "invalid_api_key", 403: "forbidden", TOO_LARGE: "too_large"}

Messages = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Messages]]
Send = Callable[[Messages], Awaitable[None]]


def guard(
    app: FastAPI, host: str, key: bytes | None, *, most_bytes: int, remedy: str, below: str = "/"
) -> FastAPI:
    """Put the guard in front of `app`, and return it.

    Args:
        host: the address that the service listens on.
        key: the digest of the token that requests must show; None: loopback alone, without a token.
        most_bytes: the largest size of a request's body.
        remedy: advice for the sender of a larger request.
        below: the prefix of the paths that Origin and token guard; other paths are open to everybody.
    """

    too_large = f"expected at most {most_bytes} bytes: {remedy}"

    async def say_too_large(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": too_large}, TOO_LARGE)

    app.add_exception_handler(TOO_LARGE, say_too_large)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=most_bytes)  # counts what has no length
    app.add_middleware(InTime)
    names = _names(host, key)
    app.add_middleware(
        Doorman, names=names, key=key, below=below, most_bytes=most_bytes, too_large=too_large, shape=detail
    )
    app.add_middleware(WithHeaders)
    return app


def guarded(app: Any, host: str, key: bytes | None, *, most_bytes: int, remedy: str) -> Any:
    """Return a bare ASGI application of OpenAI's protocol behind the guard, which refuses in the same form.

    The application itself limits the time and the size of bodies without a declared size.
    """
    too_large = f"expected at most {most_bytes} bytes: {remedy}"
    names = _names(host, key)
    return WithHeaders(
        Doorman(app, names, key, below="/", most_bytes=most_bytes, too_large=too_large, shape=openai_error)
    )


def detail(status: int, message: str) -> dict[str, Any]:
    """Return a refusal in FastAPI's form."""
    return {"detail": message}


def openai_error(status: int, message: str) -> dict[str, Any]:
    """Return a refusal in the form of OpenAI's protocol.

    >>> openai_error(403, "another page asks")["error"]["code"]
    'forbidden'
    """
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": CODES.get(status, kind)}}


class Doorman:
    """A refusal of requests with a wrong host or token, from foreign pages, or with too large a body.

    Args:
        names: this host's names; None: any.
        shape: makes a refusal's body from its status and message.
    """

    def __init__(
        self,
        app: Any,
        names: frozenset[str] | None,
        key: bytes | None,
        below: str,
        most_bytes: int,
        too_large: str,
        shape: Callable[[int, str], Mapping[str, Any]],
    ) -> None:
        self._app, self._names, self._key, self._below = app, names, key, below
        self._most_bytes, self._too_large, self._shape = most_bytes, too_large, shape

    async def __call__(self, scope: Messages, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._of_host(headers)
            if refusal is None and scope["path"].startswith(self._below):
                refusal = self._refusal(headers)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, message = refusal
        asks = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await JSONResponse(self._shape(status, message), status, headers=asks)(scope, receive, send)

    def _of_host(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        if self._names is None or host_in(headers.get("host", "")) in self._names:
            return None
        return 400, f"Invalid host header: expected {', '.join(sorted(self._names))}"

    def _refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal, or None to admit the request."""
        origin = headers.get("origin")
        if origin is not None and address_in(origin) != headers.get("host", "").lower():
            return 403, "another page asks (header Origin)"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "another page asks (header Sec-Fetch-Site)"
        if self._key is not None and not knows(headers.get("authorization", ""), self._key):
            return 401, "the token is missing or wrong"
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most_bytes:
            return TOO_LARGE, self._too_large
        return None


class InTime:
    """A refusal of bodies that don't arrive within BODY_S."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Messages, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ends_at, is_whole = asyncio.get_running_loop().time() + BODY_S, False

        async def receive_in_time() -> Messages:
            nonlocal is_whole
            if is_whole:  # only a disconnect follows the body
                return await receive()
            try:
                async with asyncio.timeout_at(ends_at):
                    message = await receive()
            except TimeoutError:
                late = f"expected the whole body within {BODY_S:g} s"
                raise HTTPException(TOO_SLOW, late, {"Connection": "close"}) from None
            is_whole = not message.get("more_body", False)
            return message

        with contextlib.suppress(ClientDisconnect):  # the client is gone
            await self._app(scope, receive_in_time, send)


class WithHeaders:
    """An addition of `HEADERS` to every answer, refusals included."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Messages, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Messages) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _names(host: str, key: bytes | None) -> frozenset[str] | None:
    """Return the names by which requests may call this host.

    None means any: with a token, a foreign page can't get in under any name.
    """
    return None if key is not None else frozenset({*OWN_NAMES, host.lower()})


def host_in(header: str) -> str | None:
    """Return the name in a header Host, or None if it has none.

    >>> host_in("[::1]:8010"), host_in("LOCALHOST"), host_in("127.0.0.1:1@evil.example")
    ('::1', 'localhost', None)
    """
    try:
        place = urlsplit(f"//{header}")
        return place.hostname if place.netloc == header and "@" not in header else None
    except ValueError:
        return None


def address_in(origin: str) -> str | None:
    """Return the host and port of a URL, or None if it has none.

    >>> address_in("http://LOCALHOST:8010")
    'localhost:8010'
    >>> address_in("null") is None
    True
    """
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
