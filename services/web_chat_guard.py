"""Who may ask the chat's page server: this machine's own browser tabs, and whoever knows the token.

Without a token the server is on loopback, where a page from elsewhere could still send requests through a
browser on this machine: by a form or a script (refused by Origin and Sec-Fetch-Site), or under a name of its
own that it lets point here (DNS rebinding, refused by Host).
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from contracts.access import is_loopback
from contracts.errors import InputError

OWN_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Messages = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Messages]]
Send = Callable[[Messages], Awaitable[None]]


def check_exposure(host: str, token: str | None) -> None:
    """Raises:
    InputError: others could reach `host`, and there is no token; or no header can carry the token.
    """
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("--token: expected letters, digits and signs of ASCII, without blanks")
    if not token and not is_loopback(host):
        raise InputError(
            f"--host {host}: others could reach the model there. Give a token that they need "
            "(WHETSTONE_TOKEN=… or --token), or leave --host out"
        )


class Guard:
    """An ASGI application in front of another one: refuses what it must, and adds headers to all answers."""

    def __init__(self, app: Any, host: str, token: str | None) -> None:
        self._app, self._token = app, token
        self._names = {*OWN_NAMES, host.lower()}

    async def __call__(self, scope: Messages, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Messages) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        refusal = self._refusal(scope["path"], headers_of(scope))
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        from fastapi.responses import JSONResponse

        status, detail = refusal
        asks = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"detail": detail}, status, headers=asks)(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """A status and why; None: go on. With a token any name will do, since no other page knows it."""
        if self._token is None and _name_in(headers.get("host", "")) not in self._names:
            return 403, "this address is not one that the server was started for (header Host)"
        if not path.startswith("/api/"):
            return None
        origin = headers.get("origin")
        if origin is not None and urlsplit_or_none(origin) != headers.get("host", "").lower():
            return 403, "another page asks (header Origin)"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "another page asks (header Sec-Fetch-Site)"
        given, expected = headers.get("authorization", ""), f"Bearer {self._token}"
        if self._token is not None and not hmac.compare_digest(given.encode(), expected.encode()):
            return 401, "the token is missing or wrong"
        return None


def headers_of(scope: Messages) -> dict[str, str]:
    """By lower-case name; of one that is there twice, the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def urlsplit_or_none(origin: str) -> str | None:
    """The host and port of an address, None where it has none.

    >>> urlsplit_or_none("http://LOCALHOST:8010")
    'localhost:8010'
    >>> urlsplit_or_none("null") is None
    True
    """
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _name_in(host: str) -> str | None:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
