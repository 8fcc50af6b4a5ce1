"""The gateway's HTTP server: one thread with an event loop, and a door behind each key.

    program ─▶ key ─▶ open calls ─▶ size of the body ─▶ door ─▶ engine ─▶ answer, whole or as events

The first step refuses callers without a valid key. So a page in a browser, which knows no key, can do nothing
here, and no checks of Host and Origin are needed.
"""

import asyncio
import hashlib
import itertools
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from contracts.network.http_server import server_config
from contracts.secrets.redaction import redact
from rollout_workers.gateway.answers import events, model_body, models_body, whole_answer
from rollout_workers.gateway.bodies import Asked, Refused, read_chat, read_completion
from rollout_workers.gateway.http_messages import (
    Receive,
    Scope,
    Send,
    aside,
    begin_answer,
    send_answer,
    send_error,
    whole_body,
)
from rollout_workers.gateway.reading import Reply

MOST_BYTES = 8 * 2**20  # limit of a call's body
READERS = {"/v1/chat/completions": read_chat, "/v1/completions": read_completion}
MODELS = "/v1/models"

Result = TypeVar("Result")


class Door(Protocol):
    """A program's lease behind a key."""

    def entered(self) -> AbstractContextManager[None]:
        """Let a call in before its body is read, or refuse it; the call ends with the context."""
        ...

    async def answer(self, request: Asked) -> tuple[int, list[Reply]]:
        """Return the number of tokens that the model read, and its answers."""
        ...

    def refused(self, reason: str) -> None:
        """Hear of a refused call, and its reason."""
        ...


class Gateway:
    """HTTP server in a thread. Only the thread of its event loop may call `open` and `shut`.

    Args:
        most_bytes: limit of a call's body.
        name: the model's name in the list of models.
        public: the door of all callers, if an application in front has checked them; None: keys decide.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, name: str = "whetstone", public: Door | None = None
    ) -> None:
        self._most_bytes, self._name, self._public = most_bytes, name, public
        self._doors: dict[bytes, Door] = {}  # by the digest of the key
        self._numbers = itertools.count(1)
        self._server: Any = None

    def start(self, listener: socket.socket | None = None, app: Any = None) -> str:
        """Serve in the thread; return the address.

        Args:
            listener: a socket; None: a free port of this machine's loopback.
            app: an ASGI application in front of this gateway; None: nothing.
        """
        import uvicorn

        listener = listener or socket.create_server(("127.0.0.1", 0))
        config = server_config(app or self)
        self._server, self._loop = uvicorn.Server(config), _loop_of(config)
        self._thread = threading.Thread(target=self._run, args=(listener,), name="gateway", daemon=True)
        self._thread.start()
        host, port = listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the server's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, act: Callable[[], object]) -> None:
        """Call a function in the server's thread."""
        self._loop.call_soon_threadsafe(act)

    def stop(self) -> None:
        """End the server and its thread."""
        self._server.should_exit = True
        self._thread.join(timeout=5)

    def open(self, door: Door) -> str:
        """Return a new key for the door."""
        key = secrets.token_urlsafe(32)
        self.open_by(key, door)
        return key

    def open_by(self, key: str, door: Door) -> None:
        """Open the door to this key."""
        self._doors[_digest(key)] = door

    def shut(self, key: str) -> None:
        """Invalidate a key."""
        self._doors.pop(_digest(key), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; uvicorn calls this method by the ASGI protocol."""
        door: Door | None = None
        try:
            door = self._door_of(scope)
            path, method = scope["path"], scope["method"]
            if method == "GET" and path in (MODELS, f"{MODELS}/{self._name}"):
                body = models_body(self._name) if path == MODELS else model_body(self._name)
                await send_answer(send, 200, body)
                return
            if path not in READERS or method != "POST":
                is_known = path in (*READERS, MODELS)
                raise Refused(
                    405 if is_known else 404,
                    f"{method} {path:.80}: expected POST {' or '.join(READERS)}, or GET {MODELS}",
                    "method_not_allowed" if is_known else "not_found",
                )
            with door.entered():
                body = await whole_body(scope, receive, self._most_bytes)
                request = await aside(len(body), READERS[path], body)
                if self._public is not None and request.model not in ("", self._name):
                    there_is = f"model={request.model!r:.80}: there is only '{self._name}' here"
                    raise Refused(404, there_is, "model_not_found")
                if self._public is not None:
                    request = replace(request, model=self._name)
                await self._answer(request, door, receive, send)
        except Refused as refused:
            if door is not None:
                door.refused(refused.message)
            await send_error(send, refused)
        except Exception as error:  # answer the next caller, whatever this caller has done
            logging.getLogger(__name__).exception("a call failed")
            failed = Refused(500, redact(f"{type(error).__name__}: {error}")[:500], "server_error")
            if door is not None:
                door.refused(failed.message)
            await send_error(send, failed)

    def _run(self, listener: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._server.serve(sockets=[listener]))
        finally:
            self._loop.close()

    def _door_of(self, scope: Scope) -> Door:
        if self._public is not None:
            return self._public
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = header.decode("latin-1").partition(" ")
        door = self._doors.get(_digest(key.strip()))
        if door is None or scheme.lower() != "bearer":
            raise Refused(401, "expected the key of an episode that goes on", "invalid_api_key")
        return door

    async def _answer(self, request: Asked, door: Door, receive: Receive, send: Send) -> None:
        """Answer a call, unless its caller leaves before the answer is ready."""
        drawing = asyncio.ensure_future(door.answer(request))
        leaving = asyncio.ensure_future(receive())  # only a disconnect comes after the body
        try:
            await asyncio.wait((drawing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not drawing.done():
                return
            num_read, replies = drawing.result()
        finally:
            for task in (drawing, leaving):
                task.cancel()
        number = next(self._numbers)
        if not request.streams:
            await send_answer(send, 200, whole_answer(number, request, num_read, replies))
            return
        await begin_answer(send, 200, b"text/event-stream")
        for event in events(number, request, num_read, replies):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _loop_of(config: Any) -> asyncio.AbstractEventLoop:
    """Return the fastest installed event loop."""
    factory = config.get_loop_factory() or asyncio.new_event_loop
    loop: asyncio.AbstractEventLoop = factory()
    return loop


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
