"""Requests and answers over ASGI: a whole body in time, and an answer or an error in OpenAI's form."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from contracts.network.http_guard import BODY_S
from rollout_workers.gateway.answers import error_body
from rollout_workers.gateway.bodies import Refused

Result = TypeVar("Result")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
QUICK = 2**16  # bytes that the event loop reads itself; a thread reads more
UNREAD = (408, 413, 429)  # refusals before the body is read; the connection ends with it


async def whole_body(scope: Scope, receive: Receive, most_bytes: int) -> bytes:
    """Return the body.

    Raises:
        Refused: the body is too large (perhaps by its declared size, before it is read), or comes too slowly.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await _read(scope, receive, most_bytes)
    except TimeoutError:
        raise Refused(408, f"expected the whole body within {BODY_S:g} s", "too_slow") from None


async def aside(size: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function on a body; for a large body in a thread, so that the event loop can answer others."""
    return work(*arguments) if size <= QUICK else await asyncio.to_thread(work, *arguments)


async def send_error(send: Send, refused: Refused) -> None:
    """Send a refusal."""
    closes = refused.status in UNREAD
    await send_answer(send, refused.status, error_body(refused), closes=closes)


async def send_answer(send: Send, status: int, body: bytes, *, closes: bool = False) -> None:
    """Send a whole answer in JSON."""
    await begin_answer(send, status, b"application/json", len(body), closes=closes)
    await send({"type": "http.response.body", "body": body})


async def begin_answer(
    send: Send, status: int, kind: bytes, length: int | None = None, *, closes: bool = False
) -> None:
    """Send an answer's status and headers."""
    headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _read(scope: Scope, receive: Receive, most_bytes: int) -> bytes:
    header = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    length = int(header) if header.isdigit() else 0
    body, more = bytearray(), True
    while more and max(length, len(body)) <= most_bytes:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if max(length, len(body)) > most_bytes:
        raise Refused(413, f"expected a body of at most {most_bytes} bytes", "too_large")
    return bytes(body)
