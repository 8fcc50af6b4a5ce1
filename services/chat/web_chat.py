"""`whetstone chat RUN --web`: a conversation in a browser, on a page served from this machine.

    page ── all messages ──▶ Guard ─▶ Reader ─▶ Answers (one at a time) ──▶ letters, a JSON object per line

The page keeps the conversation, so two tabs never mix. The server keeps nothing of it.
"""

import asyncio
import base64
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from contracts.errors import InputError
from contracts.network.access import check_exposure, digest
from contracts.network.http_guard import guard
from contracts.network.http_server import server_config
from contracts.rollout import Sampling
from services.chat.prompts import Reader
from services.chat.speaker import Speaker
from services.chat.web_chat_answers import Answers
from services.terminal.interrupts import StopRequest

MOST_BYTES = 512 * 1024  # per request
MOST_MESSAGES = 1000
PAGE = "web_chat.html.j2"
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the model for the page.

    Example: `Facts("numbers-ppo-seed0", Sampling(max_tokens=20), system=None, note="")`
    """

    name: str
    sampling: Sampling
    system: str | None
    note: str


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


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MessageBody(Body):
    role: Literal["user", "assistant"]
    content: str


class ConversationBody(Body):
    """A request's conversation. Example: `{"messages": [{"role": "user", "content": "3 5"}]}`"""

    messages: list[MessageBody] = Field(min_length=1, max_length=MOST_MESSAGES)

    @model_validator(mode="after")
    def _asks_something(self) -> "ConversationBody":
        if self.messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        if not all(message.content.strip() for message in self.messages if message.role == "user"):
            raise ValueError("a user's message must not be empty")
        return self


def listen(host: str, port: int, token: str | None) -> Door:
    """Listen on the address, before a model is loaded.

    Raises:
        InputError: it can't be listened on, or others could reach it and there is no token.
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


def serve(door: Door, facts: Facts, reader: Reader, speaker: Speaker) -> None:
    """Serve the page and answer until Ctrl-C."""
    import uvicorn

    answers = Answers(speaker)
    config = server_config(chat_app(facts, reader, answers, door.host, door.token))
    asked = " and give it the token" if door.token else ""
    print(f"Open {door.url} in a browser{asked}. Ctrl-C ends it.", flush=True)
    server, stop = uvicorn.Server(config), StopRequest()
    setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010  (StopRequest handles signals)
    stop.hold(lambda: setattr(server, "should_exit", True))
    try:
        server.run(sockets=[door.socket])
    finally:
        stop.restore()
        answers.close()


def chat_app(facts: Facts, reader: Reader, answers: Answers, host: str, token: str | None) -> Any:
    """Return the application: the page, facts about the model, and answers to conversations."""
    app = FastAPI(title="Whetstone chat", openapi_url=None)
    reading = asyncio.Lock()  # one thread at a time may use a tokenizer

    @app.get("/")
    async def page() -> HTMLResponse:
        return _page()

    @app.get("/api/model")
    async def model() -> dict[str, Any]:
        drawn = facts.sampling
        return {
            "name": facts.name,
            "max_tokens": drawn.max_tokens,
            "drawn": f"temperature {drawn.temperature:g}" if drawn.temperature else "greedy",
            "system": facts.system,
            "note": facts.note,
            "most_bytes": MOST_BYTES,
            "most_messages": MOST_MESSAGES,
        }

    @app.post("/api/answer")
    async def answer(request: Request) -> Response:
        messages = [message.model_dump() for message in (await _conversation(request)).messages]
        try:
            # In a thread: tokenizing a long text takes seconds, and the server has to answer meanwhile.
            async with reading:
                tokens, num_forgotten = await asyncio.to_thread(reader.read, messages)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        lines = _lines(num_forgotten, answers.to(tokens))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return guard(
        app,
        host,
        None if token is None else digest(token),
        most_bytes=MOST_BYTES,
        remedy="begin a new conversation",
        below="/api/",
    )


async def _conversation(request: Request) -> ConversationBody:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "expected content-type application/json")  # no foreign form can send it
    try:
        return ConversationBody.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise HTTPException(422, f"{where or 'body'}: {first['msg']}") from None


async def _lines(num_forgotten: int, events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    yield _line({"forgotten": num_forgotten})
    async for event in events:
        yield _line(event)


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event) + "\n"


def _page() -> HTMLResponse:
    """Render the page with a new nonce, so that it runs no script and no style but its own."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    nonce = base64.b64encode(secrets.token_bytes(16)).decode()
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    text = environment.get_template(PAGE).render(nonce=nonce)
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})
