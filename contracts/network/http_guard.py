"""The guard of our HTTP services: it admits programs of this machine, and callers with the token.

    request ─▶ Host ─▶ Origin, token ─▶ size of the body ─▶ the application ─▶ headers on every answer

Without a token a service listens on loopback. A foreign web page could still send requests through a browser
on this machine. The checks of Origin and Sec-Fetch-Site refuse that page's forms and scripts. The check of
Host refuses a page whose domain name points to this machine (DNS rebinding).
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from contracts.network.access import knows

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOO_LARGE = 413

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
        remedy: what the sender of a larger request should do.
        below: the prefix of the paths that Origin and token guard; other paths are open to everybody.
    """

    too_large = f"expected at most {most_bytes} bytes: {remedy}"

    async def say_too_large(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": too_large}, TOO_LARGE)

    app.add_exception_handler(TOO_LARGE, say_too_large)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=most_bytes)  # counts what has no length
    app.add_middleware(Doorman, key=key, below=below, most_bytes=most_bytes, too_large=too_large)
    # With a token any host name is safe, since no foreign page knows the token.
    names = ["*"] if key is not None else [*OWN_NAMES, host]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    app.add_middleware(WithHeaders)
    return app


def guarded(app: Any, host: str, key: bytes | None, *, most_bytes: int, remedy: str) -> Any:
    """Return a bare ASGI application behind the guard; it limits bodies without a declared size itself."""
    too_large = f"expected at most {most_bytes} bytes: {remedy}"
    names = ["*"] if key is not None else [*OWN_NAMES, host]
    doorman = Doorman(app, key=key, below="/", most_bytes=most_bytes, too_large=too_large)
    return WithHeaders(TrustedHostMiddleware(doorman, allowed_hosts=names, www_redirect=False))


class Doorman:
    """A refusal of requests from foreign pages, without the token, or with too large a declared body."""

    def __init__(self, app: Any, key: bytes | None, below: str, most_bytes: int, too_large: str) -> None:
        self._app, self._key, self._below = app, key, below
        self._most_bytes, self._too_large = most_bytes, too_large

    async def __call__(self, scope: Messages, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http" and scope["path"].startswith(self._below):
            refusal = self._refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, detail = refusal
        asks = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"detail": detail}, status, headers=asks)(scope, receive, send)

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
